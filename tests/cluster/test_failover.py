"""Requests over engines that die: nothing lost, nothing twice, and an end where it must be."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from octavo.cluster.failover import MOST_DEATHS, Failover
from octavo.scheduler.errors import (
    EngineDead,
    InvalidRequest,
    OctavoError,
    QueueFull,
    RequestFailed,
)
from octavo.scheduler.request import Finish, Request, TokenEvent
from tests.cluster.fleet import Fleet
from tests.cluster.scripted import HANG, ScriptedEngine, Step, until
from tests.scheduler.simulation import expected, request

DEAD = "rank 0 died"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(bounded())


def died(taken: bool = True) -> EngineDead:
    return EngineDead(DEAD, "a replica" if taken else "")


Told = tuple[int, int] | tuple[int, int | None, Finish]
Life = list[Told | Step]


class Attempts:
    """A script for each attempt of a request, the last one for all that follow. Events are given
    as (index, token) or (index, token, finish)."""

    def __init__(self, *attempts: Life, patience: float = 0.3) -> None:
        self.attempts = list(attempts)
        self.engine = ScriptedEngine(self._play)
        self.failover = Failover(self.engine, patience)

    @property
    def resumed(self) -> list[list[list[int] | None] | None]:
        return [each.resumed for each in self.engine.seen]

    def _play(self, item: Request) -> list[Step]:
        steps = self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]
        return [self._event(item, *step) if isinstance(step, tuple) else step for step in steps]

    def _event(
        self, item: Request, index: int, token: int | None, finish: Finish | None = None
    ) -> TokenEvent:
        return TokenEvent(item.id, [] if token is None else [token], finish, index=index)

    async def ask(self) -> list[tuple[int, int]]:
        """The (index, token) pairs that reach the front."""
        item = request("r", [1, 2, 3], 20)
        found = []
        async with aclosing(self.failover.generate(item)) as events:
            async for event in events:
                assert event.request_id == "r"
                found += [(event.index, token) for token in event.tokens]
        return found


# One attempt after another, by the word of a script


def test_the_next_attempt_begins_with_what_was_given() -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), (0, 6), died()], [(0, 7), died()], [(0, 8, Finish.STOP)])
        assert await tries.ask() == [(0, 5), (0, 6), (0, 7), (0, 8)]
        assert tries.resumed == [None, [[5, 6]], [[5, 6, 7]]]
        assert [each.id for each in tries.engine.seen] == ["r", "r~1", "r~2"]
        assert not tries.engine.live

    run(test)


def test_samples_that_have_ended_or_were_given_up_are_not_begun_again() -> None:
    async def test() -> None:
        first: Life = [(0, 5), (1, 6), (2, 7), (1, 8, Finish.STOP), (0, 9), died()]
        tries = Attempts(first, [(2, 10, Finish.STOP)])
        item = request("r", [1], 20, n=3)
        found = []
        async with aclosing(tries.failover.generate(item)) as events:
            async for event in events:
                found.append((event.index, *event.tokens))
                if event.tokens == [9]:
                    tries.failover.abort("r", 0)
        assert found == [(0, 5), (1, 6), (2, 7), (1, 8), (0, 9), (2, 10)]
        assert tries.resumed == [None, [None, None, [7]]]
        assert tries.engine.aborted == [("r", 0)]

    run(test)


def test_a_sample_is_given_up_on_the_attempt_under_way() -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), (1, 6), died()], [(0, 7), (1, 8), HANG])
        item = request("r", [1], 20, n=2)
        async with aclosing(tries.failover.generate(item)) as events:
            async for event in events:
                if event.tokens == [8]:
                    break
            tries.failover.abort("r", 1)
            assert tries.engine.aborted == [("r~1", 1)]
        tries.failover.abort("r", 0)  # it is over: nothing happens
        assert tries.engine.aborted == [("r~1", 1)] and not tries.engine.live

    run(test)


@pytest.mark.parametrize(
    ("sampling", "token"),
    [({"beam_width": 2, "n": 2, "max_tokens": 1}, 5), ({"n": 2, "max_tokens": 0}, None)],
    ids=["beams", "scored"],
)
def test_what_comes_whole_begins_anew_and_is_told_once(
    sampling: dict[str, Any], token: int | None
) -> None:
    async def test() -> None:
        end = Finish.LENGTH
        tries = Attempts([died()], [(0, token, end), died()], [(0, token, end), (1, token, end)])
        told = [e.index async for e in tries.failover.generate(request("r", [1], **sampling))]
        assert told == [0, 1]
        assert tries.resumed == [None, [], []]

    run(test)


@pytest.mark.parametrize(
    "error", [RequestFailed("its own fault"), InvalidRequest("seed", "no"), QueueFull("later")]
)
def test_a_requests_own_error_is_not_tried_again(error: OctavoError) -> None:
    async def test() -> None:
        tries = Attempts([error])
        with pytest.raises(type(error)):
            await tries.ask()
        assert len(tries.engine.seen) == 1

    run(test)


def test_what_was_let_in_once_waits_where_a_queue_is_full() -> None:
    async def test() -> None:
        full = QueueFull("later")
        tries = Attempts([(0, 5), died()], [full], [full], [(0, 6, Finish.STOP)])
        assert await tries.ask() == [(0, 5), (0, 6)]

    run(test)


def test_a_request_outlives_any_number_of_replicas_while_it_gets_on() -> None:
    async def test() -> None:
        lives: list[Life] = [[(0, token), died()] for token in range(12)]
        tries = Attempts(*lives, [(0, 12, Finish.LENGTH)])
        assert await tries.ask() == [(0, token) for token in range(13)]

    run(test)


def test_a_request_that_replicas_die_of_fails() -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), died()], [died()])
        with pytest.raises(RequestFailed, match=f"{MOST_DEATHS} replicas in a row .*{DEAD}"):
            await tries.ask()
        assert len(tries.engine.seen) == MOST_DEATHS

    run(test)


def test_a_replica_that_was_dead_before_is_no_death() -> None:
    async def test() -> None:
        refused: Life = [died(taken=False)]
        tries = Attempts([(0, 5), died()], refused, refused, refused, [(0, 6, Finish.STOP)])
        assert await tries.ask() == [(0, 5), (0, 6)]

    run(test)


@pytest.mark.parametrize("begun", [True, False])
def test_it_waits_for_a_replica_no_longer_than_it_may(begun: bool) -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), died()] if begun else [died(taken=False)])
        tries.engine.reason = "no replica is up"
        clock = asyncio.get_running_loop().time
        before = clock()
        with pytest.raises(EngineDead, match="no replica is up"):
            await tries.ask()
        assert 0.3 <= clock() - before < 1.5
        assert len(tries.engine.seen) == 1

    run(test)


def test_replicas_that_all_refuse_are_asked_no_longer_than_it_may_wait() -> None:
    async def test() -> None:
        tries = Attempts([died()], [died(taken=False)])
        with pytest.raises(EngineDead, match=DEAD):
            await tries.ask()
        assert 3 < len(tries.engine.seen) < 8, "with growing pauses"

    run(test)


def test_who_may_not_wait_moves_where_another_replica_is_up() -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), died()], [(0, 6, Finish.STOP)], patience=0)
        assert await tries.ask() == [(0, 5), (0, 6)]
        tries = Attempts([(0, 5), died()], patience=0)
        tries.engine.reason = "no replica is up"
        with pytest.raises(EngineDead, match="no replica is up"):
            await tries.ask()
        assert len(tries.engine.seen) == 1

    run(test)


def test_time_on_a_replica_is_no_waiting() -> None:
    """However long it stood in a queue there."""

    async def test() -> None:
        now = 0.0

        def queue(item: Request) -> list[Step]:
            nonlocal now
            now += 100
            if len(engine.seen) < 5:
                return [died(taken=False)]
            return [TokenEvent(item.id, [5], Finish.STOP)]

        engine = ScriptedEngine(queue)
        failover = Failover(engine, patience=1, clock=lambda: now)
        told = [event.tokens async for event in failover.generate(request("r", [1], 5))]
        assert told == [[5]] and now == 500

    run(test)


def test_it_goes_on_as_soon_as_a_replica_is_up() -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), died()], [(0, 6, Finish.STOP)])
        tries.engine.reason = "no replica is up"
        asking = asyncio.create_task(tries.ask())
        await asyncio.sleep(0.1)
        assert len(tries.engine.seen) == 1 and not asking.done()
        tries.engine.reason = None
        assert await asking == [(0, 5), (0, 6)]

    run(test)


@pytest.mark.parametrize("reason", [None, "no replica is up"])
def test_a_client_that_leaves_while_it_is_moved_leaves_nothing(reason: str | None) -> None:
    async def test() -> None:
        tries = Attempts([(0, 5), died()], [HANG])
        tries.engine.reason = reason
        asking = asyncio.create_task(tries.ask())
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not tries.engine.live and not tries.failover._courses

    run(test)


def test_suspects_are_tried_one_after_another() -> None:
    """The first that gets a token is cleared; the next one may go."""

    async def test() -> None:
        release, attempts = asyncio.Event(), dict[str, int]()

        def play(item: Request) -> list[Step]:
            name = item.id.partition("~")[0]
            attempts[name] = attempts.get(name, 0) + 1
            if attempts[name] < MOST_DEATHS:
                return [died()]
            return [TokenEvent(item.id, [1]), HANG] if release.is_set() else [HANG]

        engine = ScriptedEngine(play)
        failover = Failover(engine, patience=5)

        async def ask(name: str) -> None:
            async for _ in failover.generate(request(name, [1], 5)):
                pass

        asking = [asyncio.create_task(ask(name)) for name in "abc"]
        await until(lambda: sorted(attempts.values()) == [MOST_DEATHS - 1] * 2 + [MOST_DEATHS])
        await asyncio.sleep(0.1)
        [held] = engine.live  # the others wait for their turn
        release.set()
        asking["abc".index(held[0])].cancel()
        await until(lambda: len(engine.live) == 2)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert not engine.live

    run(test)


# Real engines that are really killed


def items(count: int) -> list[Request]:
    return [
        request(f"r{i}", list(range(i, i + 5 + i)), 20 + i, n=1 + i % 3, temperature=i % 2, seed=i)
        for i in range(count)
    ]


async def follow(
    failover: Failover, item: Request, on_event: Callable[[TokenEvent], object]
) -> list[list[int]]:
    samples: list[list[int]] = [[] for _ in range(item.sampling.n)]
    async for event in failover.generate(item):
        samples[event.index] += event.tokens
        on_event(event)
    return samples


def answers(item: Request) -> list[list[int]]:
    return [expected(item, index) for index in range(item.sampling.n)]


@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_what_it_would_have_been(seed: int) -> None:
    async def test() -> None:
        async with Fleet(max_num_queued_reqs=20) as fleet:
            for _ in range(5):
                await fleet.grow()
            failover = Failover(fleet, patience=5)
            draw = random.Random(seed)
            deaths = sorted(draw.sample(range(1, 250), 4))
            count = itertools.count(1)

            def on_event(_: TokenEvent) -> None:
                if next(count) in deaths:
                    fleet.kill()

            asked = items(8)
            got = await asyncio.gather(*(follow(failover, item, on_event) for item in asked))
            assert got == [answers(item) for item in asked]
            assert len({name for name, _ in fleet.seen}) > 2
            assert any(item.resumed for _, item in fleet.seen)
            assert fleet.running() == 0

    run(test)


def test_the_last_replica_dies_and_another_comes() -> None:
    async def test() -> None:
        async with Fleet() as fleet:
            await fleet.grow()
            failover = Failover(fleet, patience=5)
            asked = items(5)
            begun = asyncio.Event()
            asking = [
                asyncio.create_task(follow(failover, item, lambda _: begun.set())) for item in asked
            ]
            await begun.wait()
            fleet.kill()
            await asyncio.sleep(0.05)
            await fleet.grow()
            assert await asyncio.gather(*asking) == [answers(item) for item in asked]

    run(test)


def test_a_request_that_kills_takes_no_other_with_it() -> None:
    async def test() -> None:
        poison = request("poison", [63] * 9, 30)
        async with Fleet(poison.prompt) as fleet:
            await fleet.grow()
            failover = Failover(fleet, patience=5)
            asked = items(6)
            *good, bad = await asyncio.gather(
                *(follow(failover, item, lambda _: None) for item in [*asked, poison]),
                return_exceptions=True,
            )
            assert good == [answers(item) for item in asked]
            assert isinstance(bad, RequestFailed)
            assert len({name for name, item in fleet.seen if item.prompt == poison.prompt}) == 3

    run(test)
