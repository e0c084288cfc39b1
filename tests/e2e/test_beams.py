"""Beam search equals transformers': all final beams of 20 prompts, their order and their scores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cluster.checkpoints.embedded import prepare
from tests.conftest import TinyModel
from tests.e2e.beams import Oracle, assert_same_beams
from tests.e2e.exactness import PROMPTS
from tests.tiny import VOCABULARY

LENGTH = 10
END, LINE, COMMA, POINT = 2, 198, 28, 30  # of the embedded model, where beams may end
TINY_STOPS = tuple(range(2, VOCABULARY, 24))


def asked(width: int, length: int, stops: tuple[int, ...], **settings: Any) -> SamplingParams:
    return SamplingParams(
        beam_width=width, max_tokens=length, stop_token_ids=stops, ignore_eos=True, **settings
    )


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[LLM, Oracle]]:
    path = prepare()
    settings: dict[str, Any] = {"max_model_len": 128, "num_gpu_blocks_override": 400}
    with LLM(path, dtype="float32", num_threads=1, **settings) as llm:
        yield llm, Oracle(path, filler=llm.tokenizer.vocab_size - 1, batch=5)


@pytest.mark.parametrize(
    ("width", "stops", "settings"),
    [
        (2, (END,), {}),
        (4, (END, POINT, COMMA), {"length_penalty": 0.0, "repetition_penalty": 1.3}),
        (6, (END, POINT, LINE), {"length_penalty": 2.0, "early_stopping": True}),
    ],
)
def test_the_embedded_models_beams(
    embedded: tuple[LLM, Oracle], width: int, stops: tuple[int, ...], settings: dict[str, Any]
) -> None:
    llm, oracle = embedded
    prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
    assert len(prompts) == 20
    sampling = asked(width, LENGTH, stops, n=width, **settings)
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(oracle.search, prompts, width, LENGTH, stops, **settings)
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        assert_same_beams(outputs, searching.result())


@pytest.fixture(scope="module")
def tiny(tiny_model: TinyModel) -> Iterator[tuple[LLM, Oracle]]:
    path: Path = tiny_model(seed=1)
    with LLM(path, dtype="float32", num_gpu_blocks_override=900, num_threads=1) as llm:
        yield llm, Oracle(path, filler=0, batch=20)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 1.0, 2.5])
@pytest.mark.parametrize(("width", "n"), [(2, 2), (4, 1), (6, 6)])
def test_a_tiny_models_beams_by_every_rule_of_ending(
    tiny: tuple[LLM, Oracle],
    width: int,
    n: int,
    length_penalty: float,
    early_stopping: bool | str,
) -> None:
    llm, oracle = tiny
    draw = random.Random(width)
    prompts = [[draw.randrange(3, VOCABULARY) for _ in range(4 + i // 5)] for i in range(20)]
    settings = {
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "repetition_penalty": 1.0 if width == 2 else 1.2,
    }
    searches = oracle.search(prompts, width, 20, TINY_STOPS, **settings)
    lengths = {len(beam.tokens) for search in searches for beam in search.beams}
    assert length_penalty > 1 or len(lengths) > 2, "some beams end before others"
    sampling = asked(width, 20, TINY_STOPS, n=n, **settings)
    assert_same_beams(llm.generate(prompts, sampling, use_tqdm=False), searches)
