"""Beam search over HTTP as vLLM had it, against scripted engines."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from tests.cluster.calls import Connect, chat, complete, data_of, error_of
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, Step

TEXTS = ("best", "good", "fair")


def beams(request: Request) -> list[Step]:
    """Whole answers, best first, as the engine gives them."""
    played: list[Step] = []
    for rank, text in enumerate(TEXTS[: request.sampling.n]):
        tokens = TOKENIZER.encode(text)
        event = TokenEvent(request.id, tokens, Finish.LENGTH, index=rank)
        event.score, event.cumulative_logprob = -1.0 - rank, -2.0 - rank
        if request.sampling.logprobs is not None:
            event.logprobs = [Logprob(token, -0.5, 1) for token in tokens]
        played.append(event)
    return played


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(
    ("fields", "width", "n"),
    [
        ({"n": 3}, 3, 3),
        ({"n": 2, "best_of": 4}, 4, 2),
        ({"best_of": 4}, 4, 1),
        ({}, 1, 1),
    ],
)
def test_best_of_or_n_is_the_width_and_n_are_answered(
    connected: Connect, ask: Any, fields: dict[str, int], width: int, n: int
) -> None:
    engine = ScriptedEngine(beams)
    more = {"length_penalty": 0.5, "early_stopping": "never", "temperature": 1.7, "top_k": 3}
    with connected(engine) as http:
        answer = ask(http, use_beam_search=True, **fields, **more).json()
    (request,) = engine.seen
    sampling = request.sampling
    assert (sampling.beam_width, sampling.n, sampling.best_of) == (width, n, None)
    assert (sampling.length_penalty, sampling.early_stopping) == (0.5, "never")
    assert sampling.logprobs is None, "beams come ranked"
    choices = answer["choices"]
    texts = [c["text"] if "text" in c else c["message"]["content"] for c in choices]
    assert texts == list(TEXTS[:n])
    assert [choice["index"] for choice in choices] == list(range(n))
    counted = sum(len(TOKENIZER.encode(text)) for text in TEXTS[:n])
    assert answer["usage"]["completion_tokens"] == counted


def test_a_stream_has_each_beam_whole(connected: Connect) -> None:
    fields = {"use_beam_search": True, "n": 2, "best_of": 3, "stream": True}
    with connected(ScriptedEngine(beams)) as http:
        *chunks, _ = data_of(complete(http, logprobs=0, **fields))
        *told, _ = data_of(chat(http, **fields))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
        (0, "best", "length"),
        (1, "good", "length"),
    ]
    assert all(
        c["logprobs"]["token_logprobs"] == [-0.5] * len(c["logprobs"]["tokens"]) for c in choices
    )
    deltas = [chunk["choices"][0] for chunk in told]
    contents = [(c["index"], c["delta"]["content"]) for c in deltas if c["delta"].get("content")]
    assert contents == [(0, "best"), (1, "good")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True, "n": 2, "stop": ["x"]}, "stop"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of"),
        ({"use_beam_search": True, "n": 65}, "n"),
        ({"use_beam_search": True, "best_of": 65}, "best_of"),
        ({"use_beam_search": True, "best_of": 0}, "best_of"),
        ({"use_beam_search": True, "n": 0}, "n"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True, "use_beam_search": False}, "early_stopping"),
    ],
)
def test_what_does_not_go_together_is_refused(
    connected: Connect, fields: dict[str, Any], param: str
) -> None:
    with connected(ScriptedEngine(beams)) as http:
        for ask in (complete, chat):
            assert param in error_of(ask(http, **fields), 400, param)


def test_neutral_values_need_no_beams(connected: Connect) -> None:
    with connected(ScriptedEngine(beams)) as http:
        for fields in ({"length_penalty": 1}, {"early_stopping": False}, {"use_beam_search": None}):
            assert complete(http, **fields).status_code == 200
