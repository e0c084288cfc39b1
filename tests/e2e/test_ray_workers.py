"""A group of ranks as Ray actors, without a model: what it says when a rank does not do its part.

`build` functions are nested, so that Ray ships them by value.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil  # type: ignore[import-untyped]
import pytest

from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.liveness import SILENCE_SECONDS
from octavo.cluster.distributed.ray_cluster import RayCluster
from octavo.cluster.engine import Engine
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import EngineDead, InvalidRequest, OutOfStep
from octavo.scheduler.plan import StepPlan, decode_result, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker, next_token

EMPTY = encode(StepPlan(step=0, work=[], reset=True))


@pytest.fixture(scope="module")
def ray_cluster():
    cluster = RayCluster(address=None, dashboard=False)
    cluster.start(EngineConfig(model="/none", served_model_names=("null",), tensor_parallel_size=2))
    yield cluster
    left = cluster.family()
    cluster.stop()
    assert not [process for process in left if process.is_running()]


@pytest.fixture
def group(ray_cluster):
    """Makes a group of two ranks from a `build` function."""
    from octavo.cluster.distributed.ray_workers import RayWorkers

    return lambda build: RayWorkers(build, size=2)


def null(rank, size, meeting):
    return NullWorker(16, num_blocks=64, rank=rank)


def by_value(build):
    """A copy that Ray ships whole and does not import."""
    return lambda rank, size, meeting: build(rank, size, meeting)


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 100))


def failure(workers):
    """The error that starting gives."""

    async def start():
        with pytest.raises(Exception) as caught:
            await workers.start()
        return caught.value

    return asyncio.run(asyncio.wait_for(start(), 100))


def test_plans_are_executed_and_nothing_is_left(group):
    def build(rank, size, meeting):
        return NullWorker(16, num_blocks=64 + rank, num_host_blocks=9 - rank, rank=rank)

    async def test():
        workers = group(build)
        capacity = await workers.start()
        assert capacity == Capacity(64, 16, 8, 64), "the smallest rank decides"
        pids = [each.pid for each in workers._present]
        assert decode_result(await workers.execute(EMPTY)).step == 0
        await workers.stop()
        await workers.stop()
        gone = [process for process in map(_process, pids) if process is not None]
        psutil.wait_procs(gone, timeout=20)
        assert not [process for process in gone if process.is_running()]
        assert workers.fault == "the engine was stopped"

    run(test())


def _process(pid):
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def test_a_users_mistake_comes_back_as_it_is(group):
    def build(rank, size, meeting):
        raise InvalidRequest("dtype", f"rank {rank} cannot do that")

    error = failure(group(build))
    assert isinstance(error, InvalidRequest) and error.param == "dtype"


def test_a_rank_that_raises_is_named_with_the_stage(group):
    def build(rank, size, meeting):
        class Broken(NullWorker):
            def load(self):
                if rank == 1:
                    raise OSError("disk on fire\nwith details")

        return Broken(16, rank=rank)

    error = failure(group(build))
    assert isinstance(error, EngineDead)
    said = str(error)
    assert said.startswith("rank 1 (pid ") and "could not load the model" in said
    assert said.endswith("OSError: disk on fire")


def test_a_rank_that_dies_while_starting_is_named_with_the_stage(group):
    def build(rank, size, meeting):
        class Doomed(NullWorker):
            def load(self):
                if rank == 1:
                    os._exit(3)

        return Doomed(16, rank=rank)

    said = str(failure(group(build)))
    assert said.startswith("rank 1 (pid ") and "died before it could load the model" in said


def test_a_rank_that_does_not_come_is_named_within_the_bound(group, monkeypatch):
    monkeypatch.setattr("octavo.cluster.distributed.ray_workers.JOIN_SECONDS", 1.0)

    def build(rank, size, meeting):
        if rank == 1:
            time.sleep(60)
        return NullWorker(16, rank=rank)

    said = str(failure(group(build)))
    assert said.startswith("rank 1 (pid ")
    assert "did not meet the others at tcp://" in said and said.endswith("within 1 s")


def test_a_rank_that_raises_in_a_step_ends_the_group_with_its_words(group):
    def build(rank, size, meeting):
        class Faulty(NullWorker):
            def execute(self, raw):
                if rank == 1:
                    raise ValueError("not a number")
                time.sleep(60)  # as one that waits in a collective for the other

        return Faulty(16, rank=rank)

    async def test():
        workers = group(build)
        await workers.start()
        with pytest.raises(EngineDead, match=r"rank 1 .* failed: ValueError: not a number"):
            await workers.execute(EMPTY)
        await workers.stop()

    run(test())


def test_a_rank_that_dies_while_idle_is_noticed_at_once(group):
    async def test():
        workers = group(by_value(null))
        await workers.start()
        pid = workers._present[1].pid
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        reason = await workers.died()
        assert time.monotonic() - killed < SILENCE_SECONDS
        assert reason.startswith(f"rank 1 (pid {pid} on ") and "died" in reason
        with pytest.raises(EngineDead, match=f"pid {pid}"):
            await workers.execute(EMPTY)
        await workers.stop()

    run(test())


def test_a_mirror_out_of_step_is_mended_and_no_token_is_wrong(group):
    def build(rank, size, meeting):
        class Forgetful(NullWorker):
            steps = 0

            def execute(self, raw):
                self.steps += 1
                if self.steps == 10:
                    raise OutOfStep(3, 10)
                return super().execute(raw)

        return Forgetful(16, num_blocks=64, rank=rank)

    async def test():
        workers = group(build)
        capacity = await workers.start()
        scheduler = Scheduler(SchedulerConfig(max_model_len=512), capacity)
        events = []
        done = asyncio.Event()

        def emit(step):
            events.extend(step)
            if any(event.finish for event in step):
                done.set()

        engine = Engine(scheduler, workers, emit, clock=time.monotonic)
        running = asyncio.create_task(engine.run())
        prompt = list(range(40))
        engine.add(Request("a", prompt, SamplingParams(temperature=0, max_tokens=30, seed=0)))
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await workers.stop()
        context = list(prompt)
        for _ in range(30):
            context.append(next_token(context, 512, None))
        assert [token for event in events for token in event.tokens] == context[40:]

    run(test())
