"""The design's table of worked examples, as arithmetic that the real classes must give."""

from __future__ import annotations

import torch

from octavo.kernels.base import block_bytes
from octavo.scheduler.allocation import Reservation
from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.kv_cache import KvCache
from tests.scheduler.simulation import Simulation, request


def table_of(tokens: int, block_size: int = 16) -> list[int]:
    """The block table that a lone prompt of this length gets."""
    sim = Simulation(1000, block_size=block_size, max_model_len=8192, max_num_batched_tokens=8192)
    sim.add(request("r", list(range(tokens)), 1))
    plan = sim.plan()
    assert plan is not None
    return plan.add[0].blocks


def test_35_tokens_take_three_blocks() -> None:
    assert len(table_of(35)) == 3
    assert 3 * 16 - 35 == 13
    slots = [[7, 2, 11][position // 16] * 16 + position % 16 for position in (0, 16, 34)]
    assert slots == [112, 32, 178]


def test_token_53_is_in_logical_block_3() -> None:
    assert divmod(53, 16) == (3, 5)
    assert len(table_of(53)) == 4 and len(table_of(48)) == 3


def test_three_prompts_take_six_blocks() -> None:
    assert [len(table_of(n)) for n in (25, 47, 12)] == [2, 3, 1]
    assert (2 + 3 + 1) * 16 == 96 and 25 + 47 + 12 == 84


def test_block_size_sets_the_waste() -> None:
    blocks = {size: len(table_of(47, size)) for size in (4, 16, 64)}
    assert blocks == {4: 12, 16: 3, 64: 1}
    assert {size: n * size - 47 for size, n in blocks.items()} == {4: 1, 16: 1, 64: 17}


def test_100_tokens_waste_12_slots_against_1948_reserved() -> None:
    assert len(table_of(100)) * 16 - 100 == 12
    assert 2048 - 100 == 1948


def shared_prefix(requests: int, prefix: int, own: int, max_num_seqs: int) -> Simulation:
    sim = Simulation(
        10_000, block_size=16, max_model_len=8192, max_num_batched_tokens=8192,
        max_num_seqs=max_num_seqs,
    )  # fmt: skip
    common = [i % 60 for i in range(prefix)]
    sim.add(*(request(str(i), common + [i % 61] * own, 8) for i in range(requests)))
    return sim


def test_100_requests_store_a_prefix_once() -> None:
    sim = shared_prefix(100, 4992, 8, 100)
    for _ in range(3):
        sim.step()
    tables = [seq.table for seq in sim.running]
    assert len(tables) == 100
    first = tables[0][:312]
    assert all(table[:312] == first for table in tables)
    assert all(sim.scheduler.cache.pool.references[block] == 100 for block in first)


def test_16_own_prompts_take_261_blocks_each() -> None:
    assert len(table_of(4164)) == 261


def test_16_prompts_on_a_shared_prefix_take_426_blocks() -> None:
    sim = shared_prefix(16, 4000, 164, 16)
    while sim.scheduler.num_running < 16:
        sim.step()
    assert sim.scheduler.cache.pool.used == 426


def test_64_requests_compute_about_one_copy_of_their_prefix() -> None:
    sim = shared_prefix(64, 4000, 16, 16)
    sim.run()
    computed = sim.scheduler.counters.prompt_computed
    assert computed == 4000 + 64 * 16


def test_cache_bytes_a_token() -> None:
    assert block_bytes(40, 40, 16, 128, torch.float16) // 16 == 819_200  # OPT-13B
    assert block_bytes(36, 8, 16, 128, torch.bfloat16) // 16 == 147_456  # Qwen3-8B


def test_capacity_counts_the_null_block_out() -> None:
    assert Capacity(101, 16).tokens == 1600
    assert KvCache(Capacity(101, 16), Reservation(SchedulerConfig(1024))).blocks_for(35) == 3
    assert BlockPool(101).free == 100
