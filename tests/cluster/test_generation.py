"""Several sequences followed at once, and given up at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from octavo.cluster.api.generation import Generation
from octavo.cluster.api.transcript import Transcript
from octavo.cluster.text.stops import StopStrings
from octavo.scheduler.errors import RequestFailed
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.scripted import HANG, TOKENIZER, Script, ScriptedEngine, Step, says


def generation(engine: ScriptedEngine, count: int) -> Generation:
    sampling = SamplingParams(max_tokens=50)
    requests = [Request(f"r-{number}", [5], sampling) for number in range(count)]
    transcripts = [
        Transcript(TOKENIZER, request, sampling, StopStrings(())) for request in requests
    ]
    return Generation(engine, requests, transcripts)


class Gated(ScriptedEngine):
    """Answers once `gate` is open."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.gate = asyncio.Event()

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        await self.gate.wait()
        async for event in super().generate(request):
            yield event


def test_all_sequences_are_put_together() -> None:
    async def run() -> list[str]:
        async with generation(ScriptedEngine(says("Hello 你")), 3) as running:
            await running.accepted(5)
            outcomes = await running.whole()
        assert [outcome.finish for outcome in outcomes] == ["stop"] * 3
        return [outcome.text for outcome in outcomes]

    assert asyncio.run(run()) == ["Hello 你"] * 3


def test_leaving_closes_what_still_runs() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda request: [*says("Hello")(request)[:1], HANG])
        async with generation(engine, 4) as running:
            await running.accepted(5)
            assert len(engine.live) == 4
        assert not engine.live

    asyncio.run(run())


def test_a_sequence_that_stops_is_aborted_while_the_others_go_on() -> None:
    async def run() -> None:
        def script(request: Request) -> list[Step]:
            return [*says("Hello")(request)[:1], HANG]

        engine = ScriptedEngine(script)
        sampling = SamplingParams(max_tokens=50)
        requests = [Request(f"r-{number}", [5], sampling) for number in range(2)]
        transcripts = [
            Transcript(TOKENIZER, request, sampling, StopStrings(stops))
            for request, stops in zip(requests, (("H",), ()), strict=True)
        ]
        async with Generation(engine, requests, transcripts) as running:
            async for number, delta in running:
                if delta.finish:
                    assert number == 0
                    break
            for _ in range(20):
                await asyncio.sleep(0)
            assert engine.live == {"r-1"}

    asyncio.run(run())


def test_a_refusal_is_raised_at_once_and_silence_is_none() -> None:
    async def run(script: Script) -> None:
        async with generation(ScriptedEngine(script), 1) as running:
            await running.accepted(0.01)

    asyncio.run(run(lambda _: [HANG]))
    with pytest.raises(RequestFailed):
        asyncio.run(run(lambda _: [RequestFailed("x")]))


@pytest.mark.parametrize(
    "last",
    [
        [],
        [TokenEvent("r-0", [], Finish.ERROR, error="x")],
        [TokenEvent("r-0", [], Finish.ABORT)],
    ],
)
def test_a_stream_that_ends_badly_is_a_failure(last: list[Step]) -> None:
    async def run() -> None:
        async with generation(ScriptedEngine(lambda _: last), 1) as running:
            await running.whole()

    with pytest.raises(RequestFailed):
        asyncio.run(run())


def test_giving_up_is_never_swallowed_by_an_answer_that_comes_at_the_same_time() -> None:
    async def run(turns: int) -> None:
        engine = Gated(says("Hello"))
        async with generation(engine, 1) as running:
            waiting = asyncio.create_task(running.accepted(60))
            await asyncio.sleep(0.001)
            engine.gate.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up = waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled() == given_up

    for turns in range(12):
        asyncio.run(run(turns))
