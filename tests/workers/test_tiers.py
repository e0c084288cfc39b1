"""Blocks between the tiers: the order of a plan's operations, and the fences that keep it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from octavo.kernels.reference import ReferenceKernels
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import StepPlan, Work
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.copy_stream import CopyStream
from octavo.workers.copy_thread import CopyThread
from octavo.workers.host import host_blocks
from octavo.workers.place import tiers_on
from octavo.workers.tiers import independent, written_blocks
from tests.workers.late import Impatient, Late, Overwriting

CPU = torch.device("cpu")
BLOCKS = 24
HOST_BLOCKS = 10
WIDTH = 3


class Pools:
    """Both tiers, filled by hand: block b of the device starts as all b, of the host as all -b."""

    def __init__(self, kind: type[CopyThread] = CopyThread) -> None:
        self.cache = torch.arange(BLOCKS).repeat(WIDTH, 1).T.contiguous()
        self.host = host_blocks(HOST_BLOCKS, WIDTH * 8, CPU)
        self.host_values = self.host.view(torch.int64)
        self.host_values[:] = -torch.arange(HOST_BLOCKS)[:, None]
        self.tiers = kind(self.cache, self.host, ReferenceKernels())

    def step(self, plan: StepPlan, writes: dict[int, int] | None = None) -> list[int]:
        """What the step's computing finds in the device blocks before it writes."""
        self.tiers.before(plan, writes or {})
        found = self.device()
        for block, value in (writes or {}).items():
            self.cache[block] = value
        self.tiers.after(plan)
        return found

    def device(self) -> list[int]:
        assert (self.cache == self.cache[:, :1]).all(), "part of a block"
        return self.cache[:, 0].tolist()

    def host_content(self) -> list[int]:
        assert (self.host_values == self.host_values[:, :1]).all(), "part of a block"
        return self.host_values[:, 0].tolist()


@pytest.fixture
def pools():
    made = []

    def make(kind):
        made.append(Pools(kind))
        return made[-1]

    yield make
    for pool in made:
        if isinstance(pool.tiers, Late):
            pool.tiers.finish()


def test_operations_go_in_the_agreed_order(pools):
    pool = pools(Late)
    plan = StepPlan(
        0,
        [],
        swap_out=[(1, 7)],
        swap_in=[(7, 2), (3, 1)],
        copy=[(2, 5), (5, 6), (1, 5)],
        store=[(5, 8), (6, 9)],
    )
    before = pool.step(plan, {5: 50})
    assert (before[1], before[2], before[6], before[5]) == (-3, 1, 1, -3)
    pool.step(StepPlan(1, [], swap_in=[(8, 10), (9, 11)]))
    assert pool.device()[10:12] == [50, 1]
    assert pool.host_content()[7:10] == [1, 50, 1]


def test_a_step_waits_only_for_what_it_touches(pools):
    pool = pools(Late)
    pool.step(StepPlan(0, [], store=[(1, 1), (2, 2), (3, 3)]))
    pool.step(StepPlan(1, [], copy=[(3, 7)]), {4: 40, 5: 50})  # 3 is read on both sides
    assert pool.tiers.waits == []
    assert pool.tiers.take_copied()[0] == 0
    pool.step(StepPlan(2, []), {6: 60, 2: 20})
    assert pool.tiers.waits == [2]
    pool.step(StepPlan(3, []), {1: 10})  # went with its neighbour
    assert pool.tiers.waits == [2]
    pool.step(StepPlan(4, [], copy=[(6, 3)]))
    assert pool.tiers.waits == [2, 3]
    blocks, seconds = pool.tiers.take_copied()
    assert blocks == 3 and seconds > 0
    assert pool.tiers.take_copied() == (0, 0.0)
    assert pool.host_content()[1:4] == [1, 2, 3]


def test_a_block_that_is_swapped_out_may_be_handed_out_at_once(pools):
    pool = pools(Late)
    pool.step(StepPlan(0, [], swap_out=[(1, 1), (2, 2), (3, 3)], swap_in=[(4, 1)]), {2: 20})
    pool.step(StepPlan(1, [], copy=[(9, 3)]))
    pool.tiers.finish()
    assert pool.host_content()[1:4] == [1, 2, 3]
    assert pool.device()[1:4] == [-4, 20, 9]


def random_plans(seed, steps=150):
    """Plans, with what their computing writes. Any block may be in any operation."""
    rng = random.Random(seed)

    def pairs(sources, targets):
        count = rng.choice([0, 0, 1, 3])
        chosen = rng.sample(range(targets), count)
        return [(rng.randrange(sources), target) for target in chosen]

    for step in range(steps):
        plan = StepPlan(
            step,
            [],
            swap_out=pairs(BLOCKS, HOST_BLOCKS),
            swap_in=pairs(HOST_BLOCKS, BLOCKS),
            copy=pairs(BLOCKS, BLOCKS),
            store=pairs(BLOCKS, HOST_BLOCKS),
        )
        yield plan, {block: 1000 * step + block for block in rng.sample(range(BLOCKS), 3)}


def follow(pool, plans):
    """Runs plans and compares what each step finds with a model that does one thing at a time."""
    device = list(range(BLOCKS))
    host = [-block for block in range(HOST_BLOCKS)]
    for plan, writes in plans:
        for read, written, moves in (
            (device, host, plan.swap_out),
            (host, device, plan.swap_in),
            (device, device, plan.copy),
        ):
            for source, target in moves:
                written[target] = read[source]
        assert pool.step(plan, writes) == device, f"step {plan.step} finds something else"
        for block, value in writes.items():
            device[block] = value
        for source, target in plan.store:
            host[target] = device[source]
    if isinstance(pool.tiers, Late):
        pool.tiers.finish()
    return host


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [CopyThread, Late])
def test_late_copies_change_nothing(pools, kind, seed):
    pool = pools(kind)
    host = follow(pool, random_plans(seed))
    pool.step(StepPlan(150, [], swap_in=[(0, 1)]))  # after all that came before
    assert pool.host_content() == host


@pytest.mark.parametrize("kind", [Overwriting, Impatient])
def test_a_missing_fence_would_be_seen(pools, kind):
    pool = pools(kind)
    with pytest.raises(AssertionError, match="finds something else"):
        assert follow(pool, random_plans(0)) == pool.host_content(), "finds something else"


def test_a_copy_of_no_block_is_an_error_in_the_main_line():
    pool = Pools()
    pool.step(StepPlan(0, [], store=[(1, HOST_BLOCKS)]))
    with pytest.raises(RuntimeError, match="a copy between the tiers failed"):
        pool.step(StepPlan(1, [], swap_in=[(1, 1)]))
    with pytest.raises(RuntimeError, match="a copy between the tiers failed"):
        pool.step(StepPlan(2, [], store=[(1, 1)]))
    assert pool.device() == list(range(BLOCKS))


def test_runs_of_copies_may_be_done_in_any_order():
    assert list(independent([])) == []
    assert list(independent([(1, 2), (1, 3), (4, 5)])) == [[(1, 2), (1, 3), (4, 5)]]
    rng = random.Random(3)
    for _ in range(200):
        pairs = [(rng.randrange(8), rng.randrange(8)) for _ in range(6)]
        expected, found = np.arange(8), np.arange(8)
        for source, target in pairs:
            expected[target] = expected[source]
        for run in independent(pairs):
            rng.shuffle(run)
            for source, target in run:
                found[target] = found[source]
        assert found.tolist() == expected.tolist()


def test_work_writes_the_blocks_of_its_tokens():
    rows = {
        0: Row([0] * 30, 30, [10, 11, 12, 13, 14], 0, SamplingParams()),
        1: Row([0] * 30, 30, [20, 21, 22], 0, SamplingParams()),
    }
    for start, count, expected in (
        (0, 1, [10]),
        (3, 2, [10, 11]),
        (4, 8, [11, 12]),
        (4, 9, [11, 12, 13]),
        (8, 0, []),
    ):
        assert list(written_blocks([Work(0, start, count, False)], rows, 4)) == expected
    both = [Work(1, 7, 1, True), Work(0, 16, 1, True)]
    assert list(written_blocks(both, rows, 4)) == [21, 14]


def test_the_device_decides_who_copies():
    assert tiers_on(CPU) is CopyThread
    assert tiers_on(torch.device("cuda")) is CopyStream


def test_the_thread_ends_with_its_owner():
    pool = Pools()
    pool.step(StepPlan(0, [], swap_in=[(1, 1)]))
    (thread,) = pool.tiers._thread._threads
    assert thread.is_alive()
    del pool
    thread.join(timeout=10)
    assert not thread.is_alive()
