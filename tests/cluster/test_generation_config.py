"""The sampling that a model's makers advise, where a request says nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from octavo.cluster.api.generation_config import sampling_defaults
from tests.cluster.calls import Connect, chat, complete
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, says

QWEN = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "eos_token_id": [1],
    "pad_token_id": None,
}


def write(folder: Path, content: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


def test_only_what_concerns_sampling_is_read(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    assert sampling_defaults(write(tmp_path, QWEN)) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    more = {"min_p": 0.1, "repetition_penalty": 1.1, "temperature": None, "top_k": 50.0}
    assert sampling_defaults(write(tmp_path, more)) == {
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "top_k": 50,
    }


@pytest.mark.parametrize(
    "content", [[], {"temperature": "hot"}, {"top_p": 7}, {"top_k": [1]}, {"top_p": float("nan")}]
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, content: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults(write(tmp_path, content)) == {}
    assert len(caplog.messages) == len(content)
    (tmp_path / "generation_config.json").write_text("{")
    assert sampling_defaults(tmp_path) == {}


def test_requests_get_them_unless_they_say_otherwise(connected: Connect, tmp_path: Path) -> None:
    engine = ScriptedEngine(says("x"))
    write(tmp_path, QWEN | {"top_k": 10**6})
    with connected(engine, model_path=str(tmp_path)) as http:
        chat(http)
        complete(http)
        chat(http, temperature=0, top_k=3, top_p=None)
    asked = [request.sampling for request in engine.seen]
    vocabulary = TOKENIZER.vocab_size
    assert [(each.temperature, each.top_k, each.top_p) for each in asked] == [
        (0.6, vocabulary, 0.95),
        (0.6, vocabulary, 0.95),
        (0, 3, 0.95),
    ]
    with connected(engine, model_path=str(tmp_path), generation_config="vllm") as http:
        chat(http)
    last = engine.seen[-1].sampling
    assert (last.temperature, last.top_k, last.top_p) == (1.0, 0, 1.0)
