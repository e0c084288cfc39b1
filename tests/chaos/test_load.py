"""The clients of the chaos against a server that answers in every possible way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.chaos.answers import Answer
from tests.chaos.load import Load
from tests.chaos.memory import Memory
from tests.chaos.questions import Question

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def part(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


RIGHT = [part("a le"), part("af", "length"), {"choices": [], "usage": USAGE}]


def question() -> Question:
    answer = Answer()
    for piece in RIGHT:
        answer.take(piece)
    return Question("greedy", "/v1/completions", {"prompt": "a"}, answer)


class _Events(httpx.AsyncByteStream):
    def __init__(self, pieces: list[Any], end: BaseException | None) -> None:
        self._pieces = pieces
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            data = piece if isinstance(piece, str) else json.dumps(piece)
            yield f"data: {data}\n\n".encode()
        if self._end is not None:
            raise self._end
        await asyncio.sleep(0)


def outcome(
    status: int = 200,
    pieces: list[Any] | None = None,
    end: BaseException | None = None,
    *,
    patience: tuple[int, float] | None = None,
    excused: bool = False,
) -> str:
    """What a client that was answered so says of it."""

    async def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["stream_options"] == {"include_usage": True}
        return httpx.Response(status, stream=_Events(pieces or [], end))

    async def ask() -> str:
        transport = httpx.MockTransport(answer)
        load = Load("http://server", [question()], ["m"], 1, lambda *_: excused, transport)
        await load.ask(question(), question().body("m", stream=True), patience)
        await load.run(clients=0)
        [(said, count)] = load.tally.counts.items()
        assert count == 1 and load.tally.bad == len(load.tally.faults)
        return said

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"pieces": [*RIGHT, "[DONE]"]}, "right"),
        ({"pieces": RIGHT}, "failed"),
        ({"pieces": [RIGHT[0], part("ad", "length"), RIGHT[2], "[DONE]"]}, "wrong"),
        ({"pieces": [RIGHT[0], RIGHT[2], "[DONE]"]}, "wrong"),
        ({"pieces": [RIGHT[0], "[DONE]"]}, "wrong"),
        ({"pieces": [*RIGHT[:2], "[DONE]"]}, "wrong"),
        ({"pieces": [RIGHT[0], {"error": {"message": "no"}}]}, "failed"),
        ({"pieces": RIGHT[:1], "end": httpx.ReadError("cut")}, "failed"),
        ({"pieces": RIGHT[:1], "end": httpx.ReadError("cut"), "excused": True}, "lost"),
        ({"pieces": [part("b")], "end": httpx.ReadError("cut"), "excused": True}, "wrong"),
        ({"pieces": RIGHT, "patience": (1, 5.0)}, "left"),
        ({"pieces": [part("b"), *RIGHT], "patience": (1, 5.0)}, "wrong"),
        ({"status": 500}, "failed"),
        ({"status": 503}, "failed"),
    ],
)
def test_what_becomes_of_a_call_is_judged(answer: dict[str, Any], said: str) -> None:
    assert outcome(**answer).startswith(said)


class _Grown:
    """A process whose memory is what one says it is."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = iter(sizes)

    def memory_info(self) -> Any:
        return type("Info", (), {"rss": next(self._sizes)})


def test_growth_is_of_those_that_were_there_all_the_time() -> None:
    memory = Memory()
    flat, grown, late = _Grown(*[100] * 6), _Grown(50, 50, 50, 50, 50, 80), _Grown(7)
    for number in range(6):
        memory.sample("front", [flat, grown, *([late] if number == 3 else [])])
        memory.sample("gone", [])
    [(role, (first, last, share, count))] = memory.growth().items()
    assert (role, first, last, count) == ("front", 150, 180, 2)
    assert share == pytest.approx(0.2)


def test_questions_that_an_undisturbed_model_answers_otherwise_are_left_out() -> None:
    whole = {"choices": part("a leaf", "length")["choices"], "usage": USAGE}
    other = {"choices": part("a lead", "length")["choices"], "usage": USAGE}

    async def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        tie = body["model"] == "pair" and body["prompt"] == "b"
        return httpx.Response(200, json=other if tie else whole)

    async def ask() -> list[str]:
        asked = [question(), replace(question(), name="tie", fields={"prompt": "b"})]
        transport = httpx.MockTransport(answer)
        load = Load("http://server", asked, ["lone", "pair"], 1, lambda *_: False, transport)
        [left_out] = await load.leave_out_ties(2)
        assert await load.leave_out_ties(2) == [], "it is forgotten"
        return [left_out]

    [left_out] = asyncio.run(ask())
    assert left_out.startswith("tie of pair: ")
