"""What is told in passing is what `introspection` tells at length."""

from __future__ import annotations

from octavo.scheduler.glance import (
    MOST_HOLDERS,
    MOST_RUNNING,
    MOST_WAITING,
    describe_block,
    describe_request,
    running_lines,
    waiting_lines,
)
from octavo.scheduler.introspection import describe_blocks
from tests.scheduler.simulation import Simulation, request


def crowded() -> Simulation:
    sim = Simulation(18, num_host_blocks=9, max_num_batched_tokens=12)
    for i in range(8):
        sim.add(request(str(i), [i % 2] * (5 + i), 8, n=1 + i % 3, priority=i % 2))
    return sim


def test_each_request_is_as_introspection_has_it() -> None:
    sim, seen = crowded(), 0
    while sim.scheduler.live_requests:
        sim.step()
        whole = {item.id: item for item in describe_blocks(sim.scheduler).requests}
        lines = [*running_lines(sim.scheduler, 9.0), *waiting_lines(sim.scheduler, 9.0)]
        assert {line.id for line in lines} == set(whole)
        for line in lines:
            item = whole[line.id]
            assert (line.state, line.priority, line.preemptions) == (
                item.state, item.priority, item.preemptions,
            )  # fmt: skip
            assert line.blocks == sum(len(seq.table) for seq in item.sequences)
            assert line.host_blocks == sum(len(seq.host_table) for seq in item.sequences)
            assert line.computed == sum(seq.computed for seq in item.sequences)
            for seq in item.sequences:
                detail = describe_request(sim.scheduler, line.id, seq.index, 9.0)
                assert detail is not None and detail.line == line
                assert (detail.table, detail.host_table) == (seq.table, seq.host_table)
                assert (detail.tokens, detail.computed) == (seq.tokens, seq.computed)
            seen += 1
    assert seen > 20


def test_each_block_has_the_holders_that_introspection_lists() -> None:
    sim, shared = crowded(), 0
    for _ in range(6):
        sim.step()
        view = describe_blocks(sim.scheduler)
        owners = {
            seq.number: (item.id, seq.index) for item in view.requests for seq in item.sequences
        }
        for name, tier in (("device", view.device), ("host", view.host)):
            for block in range(tier.total):
                detail = describe_block(sim.scheduler, name, block)
                assert detail is not None
                assert (detail.held, detail.name) == (tier.counts[block], tier.hashes[block])
                holders = [(each.request, each.index) for each in detail.holders]
                assert holders == [owners[number] for number in tier.holders[block] or []]
                shared += len(holders) > 1
    assert shared


def test_a_holders_place_is_that_of_its_table() -> None:
    sim = crowded()
    sim.step()
    detail = describe_request(sim.scheduler, "0", 0, 0.0)
    assert detail is not None and len(detail.table) >= 2
    for place, block in enumerate(detail.table):
        shown = describe_block(sim.scheduler, "device", block)
        assert shown is not None
        assert [each.place for each in shown.holders if each.request == "0"] == [place]


def test_a_block_that_a_plan_in_flight_copies_says_so() -> None:
    sim = Simulation(30, num_host_blocks=20, write_behind_blocks=4)
    sim.add(request("r", list(range(12)), 6))
    sim.step()
    plan = sim.scheduler.schedule(1.0)
    assert plan is not None and plan.store
    source, target = plan.store[0]
    for tier, block in (("device", source), ("host", target)):
        detail = describe_block(sim.scheduler, tier, block)
        assert detail is not None and detail.move == "store"
    other = describe_block(sim.scheduler, "device", 29)
    assert other is not None and other.move is None


def test_a_reserved_block_has_no_place() -> None:
    sim = Simulation(30, allocation="max", max_model_len=40)
    sim.add(request("r", list(range(10)), 5))
    sim.step()
    (group,) = sim.scheduler.groups
    shown = describe_block(sim.scheduler, "device", group.sequences[0].reserved[0])
    assert shown is not None
    assert [(each.request, each.place) for each in shown.holders] == [("r", -1)]


def test_what_is_not_there_is_none() -> None:
    sim = crowded()
    assert describe_request(sim.scheduler, "nobody", 0, 0.0) is None
    for tier, block in (("device", 18), ("device", -1), ("host", 9)):
        assert describe_block(sim.scheduler, tier, block) is None


def test_lists_are_bounded() -> None:
    rows = MOST_RUNNING + 10
    sim = Simulation(4 * rows, max_num_seqs=rows, max_num_batched_tokens=8 * rows)
    for i in range(rows + MOST_WAITING + 10):
        sim.add(request(str(i), [7] * 6, 4))
    sim.step()
    sim.step()
    assert len(sim.running) == rows
    assert [line.id for line in running_lines(sim.scheduler, 0.0)] == [
        group.id for group in sim.scheduler.roster.running[:MOST_RUNNING]
    ]
    waiting = waiting_lines(sim.scheduler, 0.0)
    assert [line.id for line in waiting] == [str(rows + i) for i in range(MOST_WAITING)]
    shown = describe_block(sim.scheduler, "device", sim.running[-1].table[0])
    assert shown is not None and shown.held == rows
    assert len(shown.holders) == MOST_HOLDERS
