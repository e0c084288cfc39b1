"""The step loop over null workers: no model, no Ray, every answer known."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from octavo.cluster.engine import Engine
from octavo.cluster.local import STUCK_SECONDS, LocalClient, LocalEngine, LocalWorkers
from octavo.cluster.streams import Streams
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import EngineDead, NeverFits, OutOfStep, QueueFull, RequestFailed
from octavo.scheduler.plan import StepPlan, StepResult, decode_plan, decode_result, encode
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker
from octavo.workers.progress import Tally
from tests.scheduler.simulation import VOCAB, expected, request

CONFIG: dict[str, Any] = {
    "max_model_len": 256,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
}


def local_engine(num_blocks: int = 64, **config: Any) -> LocalEngine:
    return LocalEngine(
        LocalWorkers(lambda: NullWorker(4, vocab_size=VOCAB, num_blocks=num_blocks)),
        lambda capacity: SchedulerConfig(**(CONFIG | config)),
    )


async def answer(client: LocalClient, item: Request) -> list[int]:
    return [token async for event in client.generate(item) for token in event.tokens]


def submit(engine: Engine, streams: Streams, item: Request) -> None:
    streams.open(item)
    engine.add(item)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until something is so; the test's own timeout bounds it."""
    while not condition():
        await asyncio.sleep(0)


def test_many_requests_at_once_get_their_own_answers() -> None:
    async def main() -> None:
        async with local_engine(num_blocks=20) as client:
            items = [request(str(i), [i] * (5 + i), 9, temperature=1.0, seed=i) for i in range(12)]
            answers = await asyncio.gather(*(answer(client, item) for item in items))
            assert answers == [expected(item) for item in items]
            (stats,) = client.stats()
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
            assert stats.measured.finished == {"length": 12}
            assert stats.measured.generation_tokens == 12 * 9
            assert sum(stats.measured.time_to_first_token.counts) == 12
            assert sum(stats.measured.inter_token_latency.counts) == 12 * 8
            assert sum(stats.measured.e2e_latency.counts) == 12
            assert client.fault() is None

    asyncio.run(main())


async def samples(client: LocalClient, item: Request, given_up: dict[int, int]) -> list[list[int]]:
    """The tokens of each sample; a sample in `given_up` is, once it has so many."""
    answers: list[list[int]] = [[] for _ in range(item.sampling.n)]
    async for event in client.generate(item):
        own = answers[event.index]
        own += event.tokens
        if len(own) == given_up.get(event.index):
            client.abort(item.id, event.index)
    return answers


def test_a_sample_that_is_given_up_leaves_the_others_alone() -> None:
    async def main() -> None:
        async with local_engine() as client:
            item = request("r", [1, 2, 3, 4, 5], 40, temperature=1.0, seed=7, n=4)
            answers = await samples(client, item, {1: 3, 3: 20})
            whole = [expected(item, index) for index in range(4)]
            assert [answers[0], answers[2]] == [whole[0], whole[2]]
            assert answers[1] == whole[1][:3]
            assert answers[3] == whole[3][:20]
            (stats,) = client.stats()
            assert (stats.running, stats.blocks_used) == (0, 0)
            assert await samples(client, item, {0: 1, 1: 1, 2: 1, 3: 1})
            assert client.stats()[0].blocks_used == 0

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_sample_that_is_given_up_frees_its_memory_at_once() -> None:
    async def main() -> None:
        async with local_engine() as client:
            item = request("r", [1, 2, 3, 4, 5], 100, temperature=1.0, n=2, ignore_eos=True)
            stream = client.generate(item)
            async for event in stream:
                before = client.stats()[0].blocks_used
                if event.index == 0 and before > 20:
                    break
            client.abort("r", 0)
            assert client.stats()[0].blocks_used < before - 8
            await stream.aclose()
            assert client.stats()[0].blocks_used == 0

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_reset_and_a_look_at_the_blocks_reach_the_engine() -> None:
    async def main() -> None:
        async with local_engine() as client:
            item = request("a", [1] * 30, 2)
            first = [event async for event in client.generate(item)]
            assert await client.reset_prefix_cache() == 1
            item = request("b", [1] * 30, 2)
            second = [event async for event in client.generate(item)]
            assert [event.cached_tokens for event in first + second] == [0] * 4
            (document,) = await client.debug_blocks()
            assert msgspec.json.decode(document)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_reader_that_leaves_aborts_its_request() -> None:
    async def main() -> None:
        async with local_engine() as client:
            stream = client.generate(request("long", [1, 2, 3], 200))
            await anext(stream)
            assert client.stats()[0].running == 1
            await stream.aclose()
            stats = client.stats()[0]
            assert (stats.running, stats.blocks_used) == (0, 0)
            assert stats.measured.finished == {"abort": 1}
            assert await answer(client, request("next", [4], 3)) == expected(request("n", [4], 3))

    asyncio.run(main())


def test_refusals_reach_the_caller_and_leave_nothing_behind() -> None:
    async def main() -> None:
        async with local_engine(num_blocks=8, max_num_queued_reqs=1, max_num_seqs=1) as client:
            with pytest.raises(NeverFits):
                await answer(client, request("big", [1] * 20, 20))
            first = asyncio.create_task(answer(client, request("a", [1], 20)))
            await until(lambda: client.stats()[0].running == 1)
            second = asyncio.create_task(answer(client, request("b", [2], 2)))
            await until(lambda: client.stats()[0].waiting == 1)
            with pytest.raises(QueueFull):
                await answer(client, request("c", [3], 2))
            assert await first == expected(request("a", [1], 20))
            assert await second == expected(request("b", [2], 2))
            assert client.stats()[0].measured.admission_rejections == 2

    asyncio.run(main())


class Scripted:
    """Workers of one null rank whose behaviour a test bends, plan by plan."""

    def __init__(self, bend: Callable[[int, bytes, NullWorker], bytes | None]) -> None:
        self._worker = NullWorker(4, vocab_size=VOCAB)
        self._worker.allocate(64)
        self._bend = bend
        self._calls = itertools.count()

    async def start(self) -> Capacity:
        return Capacity(64, 4)

    async def execute(self, plan: bytes) -> bytes:
        result = self._bend(next(self._calls), plan, self._worker)
        await asyncio.sleep(0)
        if result is None:
            await asyncio.Event().wait()
        assert result is not None
        return result

    def tallies(self) -> list[Tally]:
        return [self._worker.progress.tally]

    async def stop(self) -> None: ...


def scripted_engine(
    bend: Callable[[int, bytes, NullWorker], bytes | None],
    workers: type[Scripted] = Scripted,
) -> tuple[Engine, Streams]:
    streams = Streams()
    scheduler = Scheduler(SchedulerConfig(**CONFIG), Capacity(64, 4))
    ticks = itertools.count()
    clock: Callable[[], float] = lambda: float(next(ticks))  # noqa: E731
    return Engine(scheduler, workers(bend), streams.deliver, clock=clock), streams


async def read(streams: Streams, name: str) -> list[TokenEvent]:
    return [event async for event in streams.read(name)]


def honest(_: int, plan: bytes, worker: NullWorker) -> bytes | None:
    return worker.execute(plan)


def test_two_plans_are_in_flight_and_results_are_matched_in_order() -> None:
    seen: list[int] = []

    def bend(call: int, plan: bytes, worker: NullWorker) -> bytes | None:
        seen.append(decode_plan(plan).step)
        return worker.execute(plan)

    async def main() -> None:
        engine, streams = scripted_engine(bend)
        item = request("a", [1, 2, 3], 6)
        submit(engine, streams, item)
        loop = asyncio.create_task(engine.run())
        events = await read(streams, "a")
        assert [t for event in events for t in event.tokens] == expected(item)
        loop.cancel()

    asyncio.run(main())
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize("lost", range(5))
def test_a_missed_plan_is_mended_without_a_trace_in_the_answer(lost: int) -> None:
    def bend(call: int, plan: bytes, worker: NullWorker) -> bytes | None:
        if call == lost:  # it never reaches the worker, which reports the gap at the next
            raise OutOfStep(lost, lost + 1)
        return worker.execute(plan)

    async def main() -> None:
        engine, streams = scripted_engine(bend)
        items = [request(str(i), [i] * 5, 6) for i in range(3)]
        for item in items:
            submit(engine, streams, item)
        loop = asyncio.create_task(engine.run())
        for item in items:
            events = await read(streams, item.id)
            assert [t for event in events for t in event.tokens] == expected(item)
        loop.cancel()

    asyncio.run(main())


def test_when_workers_die_every_request_ends_with_the_reason() -> None:
    def bend(call: int, plan: bytes, worker: NullWorker) -> bytes | None:
        if call == 3:
            raise EngineDead("rank 1 (pid 7) died")
        return worker.execute(plan)

    async def main() -> None:
        engine, streams = scripted_engine(bend)
        for name in ("a", "b"):
            submit(engine, streams, request(name, [1, 2], 50))
        loop = asyncio.create_task(engine.run())
        for name in ("a", "b"):
            with pytest.raises(EngineDead, match="rank 1"):
                await read(streams, name)
        with pytest.raises(EngineDead):
            await loop
        assert engine.fault == "rank 1 (pid 7) died"
        with pytest.raises(EngineDead, match="rank 1"):
            engine.add(request("c", [1], 1))
        assert engine.stats("0").fault == "rank 1 (pid 7) died"
        assert engine.stats("0").blocks_used == 0

    asyncio.run(main())


def test_a_result_that_is_none_kills_the_engine_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        engine, streams = scripted_engine(lambda *_: b"\xc1")
        submit(engine, streams, request("a", [1, 2], 5))
        with pytest.raises(EngineDead, match="internal error"):
            await engine.run()
        with pytest.raises(EngineDead):
            await read(streams, "a")

    asyncio.run(main())
    assert len(caplog.records) == 1


def test_a_fault_in_one_row_ends_that_request_alone() -> None:
    def bend(call: int, plan: bytes, worker: NullWorker) -> bytes | None:
        raw = worker.execute(plan)
        assert raw is not None
        result = decode_result(raw)
        if call == 1:
            return encode(StepResult(result.step, result.tokens, errors={0: "not a number"}))
        return raw

    async def main() -> None:
        engine, streams = scripted_engine(bend)
        for name in ("bad", "good"):
            submit(engine, streams, request(name, [1, 2], 5))
        loop = asyncio.create_task(engine.run())
        with pytest.raises(RequestFailed, match="not a number"):
            await read(streams, "bad")
        events = await read(streams, "good")
        assert events[-1].finish is Finish.LENGTH
        loop.cancel()

    asyncio.run(main())


def test_a_stuck_step_shows_in_the_heartbeat() -> None:
    async def main() -> None:
        engine, streams = scripted_engine(lambda *_: None)
        assert engine.stats("0").seconds_since_step == 0
        submit(engine, streams, request("a", [1, 2], 5))
        loop = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        before = engine.stats("0").seconds_since_step
        assert 0 < before < engine.stats("0").seconds_since_step
        client = LocalClient(engine, streams)
        assert client.fault() is None
        while engine.seconds_since_step <= STUCK_SECONDS:
            pass  # every look at this clock is a second
        assert client.fault() == f"a step has been running for {STUCK_SECONDS + 2:.0f} s"
        loop.cancel()

    asyncio.run(main())


def test_an_idle_engine_makes_no_steps_and_wakes_at_once() -> None:
    async def main() -> None:
        engine, streams = scripted_engine(honest)
        loop = asyncio.create_task(engine.run())
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.stats("0").steps == 0
        submit(engine, streams, request("a", [1, 2], 3))
        await read(streams, "a")
        assert engine.stats("0").steps >= 3
        loop.cancel()

    asyncio.run(main())


def test_who_arrives_while_a_step_runs_gets_into_the_next_one() -> None:
    plans: list[StepPlan] = []
    gate = asyncio.Semaphore(0)

    class Gated(Scripted):
        """Finishes a step when told to, and says that it took very long."""

        async def execute(self, plan: bytes) -> bytes:
            plans.append(decode_plan(plan))
            raw = self._worker.execute(plan)
            assert raw is not None
            await gate.acquire()
            return encode(msgspec.structs.replace(decode_result(raw), compute_seconds=1000.0))

    async def main() -> None:
        engine, streams = scripted_engine(honest, Gated)
        submit(engine, streams, request("a", [1], 50))
        loop = asyncio.create_task(engine.run())
        for _ in range(6):  # from now on, a step of one token is known to take its time
            gate.release()
            await until(lambda: gate.locked())
        for _ in range(20):
            await asyncio.sleep(0)
        made = len(plans)
        assert made == 7  # one under way, and none made too early
        engine.add(request("b", [2], 50))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(plans) == made
        gate.release()
        await until(lambda: len(plans) > made)
        assert len(plans[made].work) == 2
        loop.cancel()

    asyncio.run(main())
