"""Several requests and their samples followed at once, and given up at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from octavo.cluster.api.generation import Generation
from octavo.cluster.api.transcript import Transcript
from octavo.cluster.text.stops import StopStrings
from octavo.scheduler.errors import RequestFailed
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.scripted import HANG, TOKENIZER, Script, ScriptedEngine, Step, says


def generation(engine: ScriptedEngine, count: int, n: int = 1) -> Generation:
    sampling = SamplingParams(max_tokens=50, n=n)
    requests = [Request(f"r-{number}", [5], sampling) for number in range(count)]
    transcripts = [
        Transcript(TOKENIZER, request, sampling, StopStrings(()))
        for request in requests
        for _ in range(n)
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


def of_samples(stops: list[tuple[str, ...]], engine: ScriptedEngine) -> list[str]:
    """The texts of the samples of one request, each with stop strings of its own."""

    async def run() -> list[str]:
        sampling = SamplingParams(max_tokens=50, n=len(stops))
        request = Request("r", [5], sampling)
        transcripts = [
            Transcript(TOKENIZER, request, sampling, StopStrings(each)) for each in stops
        ]
        async with Generation(engine, [request], transcripts) as running:
            return [outcome.text for outcome in await running.whole()]

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_all_sequences_are_put_together() -> None:
    async def run() -> list[str]:
        engine = ScriptedEngine(says("Hello 你"))
        async with generation(engine, 3, n=2) as running:
            await running.accepted(5)
            outcomes = await running.whole()
        assert [outcome.finish for outcome in outcomes] == ["stop"] * 6
        assert engine.aborted == []
        return [outcome.text for outcome in outcomes]

    assert asyncio.run(run()) == ["Hello 你"] * 6


def test_sequences_are_told_apart() -> None:
    def script(request: Request) -> list[Step]:
        played: list[Step] = []
        for index in (2, 0, 1):
            tokens = TOKENIZER.encode(f"{request.id}.{index}")
            played.append(TokenEvent(request.id, tokens, Finish.LENGTH, index=index))
        return played

    async def run() -> list[str]:
        async with generation(ScriptedEngine(script), 2, n=3) as running:
            return [outcome.text for outcome in await running.whole()]

    assert asyncio.run(run()) == ["r-0.0", "r-0.1", "r-0.2", "r-1.0", "r-1.1", "r-1.2"]


def test_leaving_closes_what_still_runs() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda request: [*says("Hello")(request)[:1], HANG])
        async with generation(engine, 4) as running:
            await running.accepted(5)
            assert len(engine.live) == 4
        assert not engine.live

    asyncio.run(run())


def test_a_sample_at_its_stop_string_is_given_up_while_the_others_go_on() -> None:
    engine = ScriptedEngine(says("Hello world, hello", Finish.LENGTH))
    assert of_samples([(), ("H",), (" wo",)], engine) == ["Hello world, hello", "", "Hello"]
    assert engine.aborted == [("r", 1), ("r", 2)]


def test_the_last_sample_at_a_stop_string_closes_the_request() -> None:
    engine = ScriptedEngine(lambda request: [*says("Hello")(request)[:2], HANG])
    assert of_samples([("H",), ("H",)], engine) == ["", ""]
    assert engine.aborted == [("r", 0)]
    assert not engine.live


def test_a_sample_that_ended_by_itself_is_not_given_up() -> None:
    engine = ScriptedEngine(says("Hello"))
    assert of_samples([("lo",), ()], engine) == ["Hel", "Hello"]
    assert engine.aborted == [("r", 0)]
    whole = ScriptedEngine(says("Hello", step=99))  # the stop string comes with the last event
    assert of_samples([("lo",), ()], whole) == ["Hel", "Hello"]
    assert whole.aborted == []


def test_what_is_told_of_the_prompt_is_told_to_every_sample() -> None:
    scores = [None, Logprob(5, -1.0, 1)]

    def script(request: Request) -> list[Step]:
        first = TokenEvent(request.id, [], Finish.LENGTH, cached_tokens=7, prompt_logprobs=scores)
        return [first, TokenEvent(request.id, [], Finish.LENGTH, index=1)]

    async def run() -> None:
        async with generation(ScriptedEngine(script), 1, n=2) as running:
            await running.whole()
        for transcript in running.transcripts:
            assert (transcript.cached_tokens, transcript.prompt_logprobs) == (7, scores)

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
