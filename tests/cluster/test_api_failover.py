"""What a client sees of an engine that dies under its request: nothing, or one clear error."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cluster.failover import Failover
from octavo.scheduler.request import Finish
from tests.cluster.calls import Connect, chat, complete, data_of, error_of, eventually
from tests.cluster.scripted import Script, ScriptedEngine, mortal, says

TEXT = "Fold the sheet three times: eight leaves, sixteen pages. STOP here"


def moving(script: Script) -> Failover:
    return Failover(ScriptedEngine(script), patience=0.3)


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


CALLS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "samples": {"n": 3, "seed": 7},
    "stop string": {"stop": ["STOP"]},
    "stop string shown": {"stop": [": eight"], "include_stop_str_in_output": True},
    "logprobs": {"logprobs": 2},
    "best": {"best_of": 3, "stream": False},
    "short": {"max_tokens": 9, "stream": False},
}


@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("lives", [(1,), (7, 2), (30, 1, 1), (0, 5)])
def test_a_completion_is_the_same(
    connected: Connect, fields: dict[str, Any], lives: tuple[int, ...]
) -> None:
    asked = {"max_tokens": 100, "stream": True, "stream_options": {"include_usage": True}}
    asked |= fields
    if not asked["stream"]:
        del asked["stream_options"]
    answers = []
    for script in (says(TEXT), mortal(says(TEXT), *lives)):
        with connected(moving(script)) as http:
            answer = complete(http, **asked)
            chunks = data_of(answer) if asked["stream"] else [answer.json()]
            answers.append([each if each == "[DONE]" else without_names(each) for each in chunks])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("lives", [(1,), (10, 20)])
def test_a_chat_is_the_same(connected: Connect, lives: tuple[int, ...]) -> None:
    asked = {"n": 2, "logprobs": True, "top_logprobs": 1, "stop": ["pages"], "max_tokens": 100}
    answers = []
    for script in (says(TEXT), mortal(says(TEXT), *lives)):
        with connected(moving(script)) as http:
            answers.append(without_names(chat(http, **asked).json()))
    assert answers[0] == answers[1]


def test_a_stream_that_finds_no_other_replica_ends_with_one_error(connected: Connect) -> None:
    engine = ScriptedEngine(mortal(says(TEXT), 5))
    with connected(Failover(engine, patience=0.2)) as http:
        engine.reason = "no replica is up"
        *chunks, last = data_of(complete(http, stream=True, max_tokens=100))
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text and TEXT.startswith(text) and text != TEXT
        assert last["error"]["code"] == "engine_unavailable"
        assert "try again" in last["error"]["message"]
        assert not engine.live


def test_a_request_that_finds_no_other_replica_is_a_503(connected: Connect) -> None:
    engine = ScriptedEngine(mortal(says(TEXT), 5))
    with connected(Failover(engine, patience=0.2)) as http:
        engine.reason = "no replica is up"
        answer = complete(http, max_tokens=100)
        assert "try again" in error_of(answer, 503) and answer.headers["retry-after"]


def test_what_was_generated_elsewhere_is_never_taken_from_a_client(connected: Connect) -> None:
    engine = ScriptedEngine(says("x", Finish.LENGTH))
    with connected(engine) as http:
        assert complete(http, resumed=[[70, 71]], max_tokens=3).status_code == 200
    assert [request.resumed for request in engine.seen] == [None]


def test_a_client_that_hangs_up_while_its_request_waits_leaves_nothing(connected: Connect) -> None:
    engine = ScriptedEngine(mortal(says(TEXT), 2))
    failover = Failover(engine, patience=60)
    with connected(failover) as http:
        engine.reason = "no replica is up"
        with http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            next(answer.iter_lines())
        assert eventually(lambda: not failover._courses, 2)
    assert not engine.live
