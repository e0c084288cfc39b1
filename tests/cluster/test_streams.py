"""One stream of events a step, read request by request and sample by sample."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from octavo.cluster.streams import Streams
from octavo.scheduler.errors import EngineDead, QueueFull, RequestFailed
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams


def opened(n: int) -> Streams:
    streams = Streams()
    streams.open(Request("a", [1], SamplingParams(n=n)))
    return streams


def event(token: int, index: int = 0, finish: Finish | None = None) -> TokenEvent:
    return TokenEvent("a", [token], finish, index=index)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 10)

    asyncio.run(bounded())


async def read(streams: Streams) -> list[tuple[int, int]]:
    return [(each.index, each.tokens[0]) async for each in streams.read("a")]


def test_a_stream_lasts_until_the_last_sample_has_ended() -> None:
    async def test() -> None:
        streams = opened(2)
        streams.deliver([event(1), event(2, 1, Finish.STOP), event(3), event(4, 0, Finish.LENGTH)])
        streams.deliver([TokenEvent("nobody", [9])])
        assert await read(streams) == [(0, 1), (1, 2), (0, 3), (0, 4)]
        assert streams.close("a") and len(streams) == 0

    run(test)


def test_nothing_more_comes_of_a_sample_that_was_given_up() -> None:
    async def test() -> None:
        streams = opened(2)
        streams.deliver([event(1), event(2, 1), event(3), event(4, 1, Finish.STOP)])
        assert streams.give_up("a", 0)
        assert not streams.give_up("a", 0)
        assert not streams.give_up("b", 0)
        assert await read(streams) == [(1, 2), (1, 4)]
        assert not streams.give_up("a", 1), "it has ended"
        assert not streams.close("a"), "the engine may not know yet"

    run(test)


def test_giving_up_the_last_live_sample_wakes_the_reader() -> None:
    async def test() -> None:
        streams = opened(2)
        streams.deliver([event(1, 1, Finish.STOP)])
        reading = asyncio.create_task(read(streams))
        await asyncio.sleep(0)
        assert streams.give_up("a", 0)
        assert await reading == [(1, 1)]

    run(test)


def test_a_stream_that_is_closed_early_was_not_whole() -> None:
    async def test() -> None:
        streams = opened(2)
        streams.deliver([event(1, 0, Finish.STOP)])
        assert [await anext(streams.read("a"))] == [event(1, 0, Finish.STOP)]
        assert not streams.close("a")

    run(test)


@pytest.mark.parametrize(
    ("finish", "error"), [(Finish.ERROR, RequestFailed), (Finish.ABORT, EngineDead)]
)
def test_a_fault_ends_all_samples(finish: Finish, error: type[Exception]) -> None:
    async def test() -> None:
        streams = opened(3)
        streams.deliver([event(1, 2), TokenEvent("a", [], finish, error="why")])
        with pytest.raises(error, match="why"):
            await read(streams)
        assert not streams.close("a")

    run(test)


def test_a_refusal_comes_after_what_was_delivered() -> None:
    async def test() -> None:
        streams = opened(1)
        streams.deliver([event(1)])
        streams.fail("a", QueueFull("later"))
        stream = streams.read("a")
        assert (await anext(stream)).tokens == [1]
        with pytest.raises(QueueFull):
            await anext(stream)

    run(test)


def test_a_resumed_request_lasts_until_its_last_live_sample_has_ended() -> None:
    async def test() -> None:
        streams = Streams()
        streams.open(Request("a", [1], SamplingParams(n=3), resumed=[None, [5], None]))
        streams.deliver([event(1, 1, Finish.STOP), event(2, 0)])
        assert await read(streams) == [(1, 1)]
        assert streams.close("a")

    run(test)
