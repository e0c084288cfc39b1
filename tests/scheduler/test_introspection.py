"""What people are shown is what is there."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.introspection import BlocksView, TierView, describe_blocks
from octavo.scheduler.scheduler import Scheduler
from tests.scheduler.instructions import count_instructions
from tests.scheduler.simulation import Simulation, request


def check_tier(tier: TierView, tables: dict[int, list[int]]) -> None:
    """Columns that agree with the tables and with each other."""
    assert len(tier.counts) == len(tier.hashes) == len(tier.holders) == tier.total
    for block in range(tier.total):
        holders = [number for number, table in tables.items() if block in table]
        assert (tier.holders[block] or []) == holders
        assert tier.counts[block] == len(holders)


def look(sim: Simulation) -> BlocksView:
    view = describe_blocks(sim.scheduler)
    sequences = [seq for item in view.requests for seq in item.sequences]
    assert [seq.number for seq in sequences] == list(range(len(sequences)))
    check_tier(view.device, {seq.number: seq.table for seq in sequences})
    check_tier(view.host, {seq.number: seq.host_table for seq in sequences})
    assert view.device.counts[0] == 0 and view.device.hashes[0] is None
    device_free = sum(count == 0 for count in view.device.counts) - 1  # but the null block
    assert view.device.free == device_free
    assert view.host.free == sum(count == 0 for count in view.host.counts)
    for tier in (view.device, view.host):
        loose = zip(tier.counts, tier.hashes, strict=True)
        assert tier.cached == sum(count == 0 and name is not None for count, name in loose)
    return view


def test_an_empty_engine() -> None:
    view = look(Simulation(8, num_host_blocks=3))
    assert (view.block_size, view.requests) == (4, [])
    assert (view.device.total, view.device.free, view.device.cached) == (8, 7, 0)
    assert (view.host.total, view.host.free, view.host.cached) == (3, 3, 0)


def test_each_request_with_its_tables_and_each_block_with_its_holders() -> None:
    sim = Simulation(
        30, num_host_blocks=20, preemption_mode="swap", write_behind_blocks=0, max_num_seqs=3,
        max_num_batched_tokens=64,
    )  # fmt: skip
    sim.add(request("swapped", [7] * 9, 9, priority=5))
    sim.step()
    sim.preempt("swapped")
    sim.add(request("pair", list(range(10)), 6, n=2, temperature=1.0, priority=-1))
    sim.add(request("other", [8] * 5, 6), request("waiting", [9] * 5, 6, priority=9))
    sim.step()
    sim.step()
    view = look(sim)
    shown = {item.id: item for item in view.requests}
    assert {name: item.state for name, item in shown.items()} == {
        "swapped": "swapped", "pair": "running", "other": "running", "waiting": "waiting",
    }  # fmt: skip
    assert {name: (item.priority, item.preemptions) for name, item in shown.items()} == {
        "swapped": (5, 1), "pair": (-1, 0), "other": (0, 0), "waiting": (9, 0),
    }  # fmt: skip
    one, two = shown["pair"].sequences
    assert (one.index, two.index) == (0, 1)
    assert (one.tokens, one.computed) == (two.tokens, two.computed) == (12, 11)
    assert one.table[:2] == two.table[:2] and one.table[2] != two.table[2]
    assert view.device.counts[one.table[0]] == 2
    assert view.device.holders[one.table[0]] == [one.number, two.number]
    assert view.device.hashes[one.table[0]] == sim.running[0].chain[0].hex()
    assert view.device.hashes[one.table[2]] is None  # it is not full
    (swapped,) = shown["swapped"].sequences
    assert swapped.table == [] and len(swapped.host_table) == 3 and swapped.computed == 0
    assert view.host.counts[swapped.host_table[0]] == 1
    assert view.host.hashes[swapped.host_table[0]] is not None
    assert view.host.hashes[swapped.host_table[2]] is None
    (waiting,) = shown["waiting"].sequences
    assert waiting.table == waiting.host_table == [] and waiting.tokens == 5
    sim.run()
    assert look(sim).requests == []


def test_it_is_right_at_every_step_of_a_crowded_run() -> None:
    sim = Simulation(18, num_host_blocks=9, max_num_batched_tokens=12)
    for i in range(8):
        more: dict[str, Any] = {"beam_width": 2} if i % 3 == 2 else {"n": 1 + i % 3}
        sim.add(request(str(i), [i % 2] * (5 + i), 8, priority=i % 2, **more))
    states = set()
    while sim.scheduler.live_requests:
        sim.step()
        states |= {item.state for item in look(sim).requests}
    assert states >= {"running", "waiting"}
    assert look(sim).device.cached > 0


def test_reserved_blocks_have_a_holder() -> None:
    sim = Simulation(30, allocation="max", max_model_len=40)
    sim.add(request("r", list(range(10)), 5))
    sim.step()
    view = describe_blocks(sim.scheduler)
    assert len(view.requests[0].sequences[0].table) == 3
    assert sum(holders == [0] for holders in view.device.holders) == 10


def test_a_picture_is_a_copy_that_can_be_sent() -> None:
    sim = Simulation(16, num_host_blocks=4)
    sim.add(request("r", list(range(10)), 9))
    sim.step()
    view = describe_blocks(sim.scheduler)
    sent = msgspec.json.encode(view)
    for _ in range(4):
        sim.step()
    assert msgspec.json.encode(view) == sent
    assert msgspec.json.decode(sent, type=BlocksView) == view


def instructions(num_blocks: int) -> int:
    """Python instructions that it takes to describe a pool of which half is in use."""
    scheduler = Scheduler(
        SchedulerConfig(num_blocks * 16), Capacity(num_blocks, 16, num_host_blocks=num_blocks)
    )
    for i in range(num_blocks // 64):
        scheduler.add(request(str(i), [i % 60] * 512, 1, salt=str(i)), 0.0)
    while scheduler.roster.waiting and scheduler.schedule(0.0):
        pass
    return count_instructions(lambda: describe_blocks(scheduler))


def test_its_cost_is_a_few_instructions_a_block() -> None:
    small, large = instructions(1024), instructions(4096)
    assert large < 4.2 * small
    assert large < 60 * 4096
