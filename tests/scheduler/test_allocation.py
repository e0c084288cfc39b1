"""Reserving memory at admission, as systems before paging did."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.introspection import MemoryUse, measure_memory
from octavo.scheduler.request import Request
from tests.scheduler.simulation import Simulation, request

RESERVING = ["max", "pow2", "oracle"]


def reserving(allocation: str, num_blocks: int = 64, **options: Any) -> Simulation:
    return Simulation(num_blocks, allocation=allocation, max_model_len=40, **options)


@pytest.mark.parametrize(
    ("allocation", "max_tokens", "blocks"),
    [
        ("max", 5, 10),
        ("max", 30, 10),
        ("pow2", 5, 5),  # 10 + 8 tokens
        ("pow2", 8, 5),
        ("pow2", 9, 7),  # 10 + 16
        ("pow2", 1, 3),
        ("pow2", 17, 10),  # 10 + 32 are more than the model takes
        ("oracle", 5, 4),
        ("oracle", 6, 4),
        ("oracle", 7, 5),
        ("paged", 5, 3),
    ],
)
def test_what_a_request_of_ten_tokens_holds(allocation: str, max_tokens: int, blocks: int) -> None:
    sim = reserving(allocation)
    sim.add(request("r", list(range(10)), max_tokens))
    pool, held = sim.scheduler.cache.pool, set()
    while "r" not in sim.finished:
        sim.plan()
        held.add(pool.used)
        sim.receive()
    sim.check_answers()
    sim.check_empty()
    assert min(held) == blocks
    assert len(held) == 1 or allocation == "paged"  # from its admission to its end


@pytest.mark.parametrize(
    ("allocation", "tokens", "reserved", "wasted"),
    [
        # 10 of 15 tokens are there; without reservations, 2 slots of the third block are empty.
        ("max", 10, 5, 1 + 6 * 4),
        ("pow2", 10, 5, 1 + 4),
        ("oracle", 10, 5, 1),
        ("paged", 10, 0, 2),
    ],
)
def test_where_the_memory_is(allocation: str, tokens: int, reserved: int, wasted: int) -> None:
    sim = reserving(allocation)
    sim.add(request("r", list(range(10)), 5))
    sim.plan()
    blocks = (tokens + reserved + wasted) // 4
    assert measure_memory(sim.scheduler) == MemoryUse(tokens, reserved, wasted, blocks, blocks)
    sim.receive()
    sim.run()
    assert measure_memory(sim.scheduler) == MemoryUse(0, 0, 0, 0, 0)


def test_shared_slots_are_counted_once() -> None:
    sim = reserving("paged")
    sim.add(request("r", list(range(10)), 5, n=3, temperature=1.0))
    sim.plan()
    assert measure_memory(sim.scheduler) == MemoryUse(10, 0, 2, 3, 9)
    sim.receive()
    sim.plan()  # each has 11 tokens, of which 8 are shared
    assert measure_memory(sim.scheduler) == MemoryUse(8 + 3 * 3, 0, 3, 2 + 3, 9)


@pytest.mark.parametrize("allocation", RESERVING)
def test_nothing_is_shared(allocation: str) -> None:
    sim = reserving(allocation)
    for name in ("one", "two"):
        sim.add(request(name, list(range(10)), 3))
    sim.step()
    one, two = ([*seq.table, *seq.reserved] for seq in sim.running)
    assert set(one).isdisjoint(two)
    sim.run()
    sim.add(request("late", list(range(10)), 3))
    sim.run()
    sim.check_answers()
    assert [event.cached_tokens for event in sim.events] == [0] * 9
    assert sim.scheduler.counters.prompt_computed == 30


@pytest.mark.parametrize("allocation", RESERVING)
def test_what_is_reserved_is_never_taken_back(allocation: str) -> None:
    sim = reserving(allocation, num_blocks=22, watermark_low=0, watermark_high=0)
    items = [request(str(i), [i] * (3 + i), 9 + i) for i in range(8)]
    sim.add(*items)
    sim.run()
    sim.check_answers()
    sim.check_empty()
    assert sim.scheduler.counters.preemptions == 0


def side_by_side(allocation: str, items: list[Request]) -> int:
    """How many requests run at once, at most, in a pool of 30 blocks."""
    sim = reserving(
        allocation, 31, max_num_seqs=64, max_num_batched_tokens=512, watermark_low=0,
        watermark_high=0,
    )  # fmt: skip
    sim.add(*items)
    most = 0
    while sim.scheduler.live_requests:
        sim.plan()
        most = max(most, sim.scheduler.num_running)
        sim.receive()
    sim.check_answers()
    return most


def test_the_less_is_reserved_the_more_requests_run_at_once() -> None:
    items = [request(str(i), [i] * 6, 10) for i in range(20)]
    most = [side_by_side(name, items) for name in ("max", "pow2", "oracle", "paged")]
    assert most[:3] == [3, 5, 7]  # of 10, 6 and 4 blocks
    assert most[3] > 7


@pytest.mark.parametrize("allocation", RESERVING)
def test_a_preempted_request_reserves_again(allocation: str) -> None:
    sim = reserving(allocation)
    sim.add(request("r", list(range(10)), 9))
    for _ in range(3):
        sim.step()
    used = sim.scheduler.cache.pool.used
    sim.preempt("r")
    assert sim.scheduler.cache.pool.used == 0
    sim.step()
    assert sim.scheduler.cache.pool.used == used
    sim.run()
    sim.check_answers()
