"""The step channel over real sockets, the workers being threads."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest
import zmq

from octavo.cluster.distributed.channel import StepChannel
from octavo.scheduler.errors import EngineDead, OutOfStep
from octavo.workers.ahead import run_ahead
from octavo.workers.channel import Answer, Link, WorkerChannel
from octavo.workers.curve import dial
from octavo.workers.progress import Progress, Tally

NODE = "127.0.0.1"
PROGRESS = Progress()
Body = Callable[[WorkerChannel, int], None]


def echo(channel: WorkerChannel, rank: int) -> None:
    for plan in channel.plans():
        if rank == 0:
            channel.answer(b"did " + plan)


def worker(link: Link, rank: int, body: Body) -> None:
    with WorkerChannel(link, rank, NODE, PROGRESS) as channel:
        body(channel, rank)


def run(
    world: int,
    body: Body,
    test: Callable[[StepChannel], Coroutine[Any, Any, None]],
    silence: float = 8.0,
) -> None:
    """Runs `test` against `world` worker threads; all of them end with the channel."""

    async def main() -> None:
        channel = StepChannel(NODE, world, silence=silence)
        with ThreadPoolExecutor(world) as pool:
            threads = [pool.submit(worker, channel.link, rank, body) for rank in range(world)]
            try:
                await channel.greet(10)
                await test(channel)
            finally:
                await channel.close()
            for thread in threads:
                thread.result(10)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_plans_in_flight_are_answered_in_order():
    async def test(channel: StepChannel) -> None:
        plans = [b"%d" % number for number in range(200)]
        results = await asyncio.gather(*map(channel.execute, plans))
        assert results == [b"did " + plan for plan in plans]

    run(3, echo, test)


def test_each_ranks_own_steps_come_with_its_heartbeats():
    both = [Progress(), Progress()]
    both[0].stepped(0.5)
    for number in range(3):
        both[1].stepped(0.25, exchanging=0.1 * number)

    async def main() -> None:
        channel = StepChannel(NODE, 2)
        assert channel.tallies() == [Tally(), Tally()], "nothing is known yet"
        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(listen, channel.link, rank) for rank in range(2)]
            await channel.greet(10)
            while channel.tallies() != [Tally(1, 0.5, 0.0), Tally(3, 0.75, 0.2)]:
                await asyncio.sleep(0.01)
            await channel.close()
            for thread in threads:
                thread.result(10)

    def listen(link: Link, rank: int) -> None:
        with WorkerChannel(link, rank, NODE, both[rank]) as channel:
            echo(channel, rank)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_every_rank_gets_every_plan_once_and_in_order():
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    def note(channel: WorkerChannel, rank: int) -> None:
        for plan in channel.plans():
            seen[rank].append(plan)
            if rank == 0:
                channel.answer(b"")

    async def test(channel: StepChannel) -> None:
        for number in range(100):
            await channel.execute(b"%d" % number)
        while len(seen[1]) < 100 or len(seen[2]) < 100:
            await asyncio.sleep(0.01)

    run(3, note, test)
    expected = [b"%d" % number for number in range(100)]
    assert seen == {0: expected, 1: expected, 2: expected}


class Instant:
    """A launcher whose steps end a little after they were begun."""

    runs_ahead = True

    def begin(self, plan: bytes) -> Any:
        if plan == b"gap":
            raise OutOfStep(4, 6)
        return Begun(plan)

    def finish(self, begun: Any) -> bytes:
        assert isinstance(begun, Begun)
        return b"did " + begun.plan


class Begun:
    def __init__(self, plan: bytes) -> None:
        self.plan = plan
        self._looks = 3

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def wait(self) -> None: ...


def test_steps_that_are_begun_early_are_answered_in_order_and_without_a_next_plan():
    def ahead(channel: WorkerChannel, rank: int) -> None:
        run_ahead(cast(Any, Instant()), channel)

    async def test(channel: StepChannel) -> None:
        assert await asyncio.wait_for(channel.execute(b"alone"), 10) == b"did alone"
        plans = [b"%d" % number for number in range(50)]
        results = await asyncio.gather(*map(channel.execute, plans))
        assert results == [b"did " + plan for plan in plans]
        last = asyncio.create_task(channel.execute(b"last"))
        with pytest.raises(OutOfStep, match="expected plan 4, got plan 6"):
            await channel.execute(b"gap")
        assert await last == b"did last"

    run(2, ahead, test)


def test_a_lost_plan_is_sent_again_before_the_next_is_executed(monkeypatch):
    executed: dict[int, list[bytes]] = {0: [], 1: []}

    def note(channel: WorkerChannel, rank: int) -> None:
        for plan in channel.plans():
            executed[rank].append(plan)
            if rank == 0:
                channel.answer(plan)

    async def test(channel: StepChannel) -> None:
        await channel.execute(b"one")
        broadcast = channel._broadcast
        monkeypatch.setattr(channel, "_broadcast", lambda *frame: None)
        lost = asyncio.create_task(channel.execute(b"two"))
        await asyncio.sleep(0)
        monkeypatch.setattr(channel, "_broadcast", broadcast)
        assert await channel.execute(b"three") == b"three"
        assert await lost == b"two"
        while len(executed[1]) < 3:
            await asyncio.sleep(0.01)

    run(2, note, test)
    assert executed == {0: [b"one", b"two", b"three"], 1: [b"one", b"two", b"three"]}


def test_the_last_plan_lost_is_sent_again_on_a_heartbeat(monkeypatch):
    monkeypatch.setattr("octavo.cluster.distributed.channel.RESEND_SECONDS", 0.1)
    monkeypatch.setattr("octavo.workers.channel.BEAT_SECONDS", 0.05)

    async def test(channel: StepChannel) -> None:
        broadcast = channel._broadcast
        monkeypatch.setattr(channel, "_broadcast", lambda *frame: None)
        lost = asyncio.create_task(channel.execute(b"one"))
        await asyncio.sleep(0)
        monkeypatch.setattr(channel, "_broadcast", broadcast)
        assert await lost == b"did one"

    run(1, echo, test)


def test_a_stray_mirror_raises_for_its_plan_only():
    def stray(channel: WorkerChannel, rank: int) -> None:
        for plan in channel.plans():
            if plan == b"gap":
                channel.stray(expected=4, got=6)
            elif rank == 0:
                channel.answer(plan)

    async def test(channel: StepChannel) -> None:
        first, gap, last = await asyncio.gather(
            *map(channel.execute, [b"a", b"gap", b"b"]), return_exceptions=True
        )
        assert (first, last) == (b"a", b"b")
        assert isinstance(gap, OutOfStep) and (gap.expected, gap.got) == (4, 6)
        assert channel.fault is None

    run(2, stray, test)


def test_a_failing_rank_ends_all_plans_with_its_name_and_words():
    def fail(channel: WorkerChannel, rank: int) -> None:
        for _ in channel.plans():
            if rank == 1:
                channel.failed("RuntimeError: out of memory")

    async def test(channel: StepChannel) -> None:
        results = await asyncio.gather(*map(channel.execute, [b"a", b"b"]), return_exceptions=True)
        assert all(isinstance(result, EngineDead) for result in results)
        assert "rank 1" in str(results[0]) and "out of memory" in str(results[0])
        with pytest.raises(EngineDead, match="out of memory"):
            await channel.execute(b"c")
        assert "rank 1" in await channel.died()

    run(2, fail, test)


def test_a_silent_rank_is_noticed(monkeypatch):
    monkeypatch.setattr("octavo.workers.channel.BEAT_SECONDS", 0.05)
    release = threading.Event()

    def mute(channel: WorkerChannel, rank: int) -> None:
        if rank == 1:
            channel._closed.set()  # ends its heartbeat thread
        for _ in channel.plans():
            release.wait(20)

    async def test(channel: StepChannel) -> None:
        try:
            with pytest.raises(EngineDead, match="rank 1 .*no heartbeat"):
                await channel.execute(b"a")
        finally:
            release.set()

    run(2, mute, test, silence=0.3)


def test_a_rank_that_never_joins_is_named():
    async def main() -> None:
        channel = StepChannel(NODE, 2)
        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(worker, channel.link, 0, echo)
            with pytest.raises(EngineDead, match=r"rank\(s\) \[1\] did not join"):
                await channel.greet(0.5)
            await channel.close()
            thread.result(10)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("key", [None, "another group's"])
def test_strangers_are_neither_heard_nor_told(key):
    async def test(channel: StepChannel) -> None:
        context = zmq.Context()
        spy, forger = context.socket(zmq.SUB), context.socket(zmq.PUSH)
        spy.subscribe(b"")
        for socket in (spy, forger):
            if key is not None:
                dial(socket, zmq.curve_keypair()[0].decode())
        spy.connect(channel.link.plans)
        forger.connect(channel.link.answers)
        forger.send(msgspec.msgpack.encode(Answer(0, 1, b"forged")))
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert (await channel.execute(b"a")) == b"did a"
        assert spy.poll(0) == 0
        context.destroy(linger=0)

    run(1, echo, test)
