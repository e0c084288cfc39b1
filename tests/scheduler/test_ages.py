"""How old blocks become, to the millisecond that the pool is told."""

from __future__ import annotations

import pytest

from octavo.scheduler.ages import MOST_EVENTS, SAMPLE, Ages, Eviction
from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.introspection import QueueView, describe_queue
from tests.scheduler.simulation import Simulation, request


def test_a_block_that_is_found_again_and_then_given_up() -> None:
    pool = BlockPool(2)
    pool.ages.tell(10.0)
    block = pool.take()
    pool.publish(block, b"content")
    pool.ages.tell(12.0)
    pool.release([block])
    pool.ages.tell(15.0)
    pool.touch(block)
    pool.touch(block)  # held already: no gap that a cache had to bridge
    assert pool.shared == 1
    pool.ages.tell(20.0)
    pool.release([block, block])
    assert pool.shared == 0
    pool.ages.tell(27.5)
    pool.take()
    assert pool.ages.take() == ([Eviction(lifetime=17.5, idle=7.5)], [3.0])
    assert pool.ages.take() == ([], [])


def test_blocks_without_content_are_not_evicted() -> None:
    pool = BlockPool(2)
    for _ in range(2):
        pool.release([pool.take()])
    pool.publish(pool.take(), b"content")
    pool.reset()  # asked for, and not for want of room
    assert pool.ages.take() == ([], [])


def test_the_clock_may_turn_over() -> None:
    ages = Ages(1)
    ages.tell(2**32 / 1000 - 1)
    ages.taken[0] = ages.used[0] = ages.now
    ages.tell(2**32 / 1000 + 2)
    ages.evict(0)
    assert ages.take()[0][0].lifetime == pytest.approx(3, abs=0.002)


def test_some_of_many_are_looked_at_and_no_more_kept_than_that() -> None:
    pool = BlockPool(1 + 8 * SAMPLE)
    for _ in range(2):
        table = pool.take_many(pool.free)
        for block in table:
            pool.publish(block, block.to_bytes(16, "little"))
        pool.release(table)
    assert len(pool.ages.evicted) == 8
    for _ in range(MOST_EVENTS):
        pool.ages.evict(1)
        pool.ages.reuse(1)
    evictions, gaps = pool.ages.take()
    assert len(evictions) == len(gaps) == MOST_EVENTS


def test_a_queue_says_how_old_it_is_and_for_what_it_waits() -> None:
    sim = Simulation(40, num_host_blocks=20, max_num_seqs=2, preemption_mode="swap")
    assert describe_queue(sim.scheduler, 5.0) == QueueView(0, 0, 0.0, 0)
    sim.add(request("a", [1] * 9, 50), request("b", [2] * 9, 50), request("c", [3] * 9, 50))
    for _ in range(4):
        sim.step()
    assert describe_queue(sim.scheduler, sim.now) == QueueView(0, 0, 4.0, 3)
    sim.preempt("b")  # as of the last plan; the older of the two counts
    assert describe_queue(sim.scheduler, sim.now) == QueueView(0, 1, 4.0, 7)
    sim.scheduler.abort("c")
    assert describe_queue(sim.scheduler, sim.now + 3) == QueueView(0, 1, 3.0, 4)


def test_one_that_waits_for_anothers_prefix_is_deferred() -> None:
    sim = Simulation(64)
    sim.add(request("first", list(range(40)), 2), request("same", list(range(40)), 2))
    sim.plan()
    assert describe_queue(sim.scheduler, sim.now) == QueueView(1, 0, 1.0, 11)
