"""A picture shows what is there, and costs little."""

from __future__ import annotations

from octavo.cluster.picture import COPIED, LOOK_SECONDS, STEPS_KEPT, Look, Painter, codes
from octavo.scheduler.introspection import TierView, describe_blocks
from tests.cluster.pictures import Picture, read_picture
from tests.scheduler.simulation import Simulation, request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def look(painter: Painter, clock: Clock, **wanted: object) -> Picture:
    clock.now += 1
    return read_picture(painter.paint(Look(**wanted)))  # type: ignore[arg-type]


def expected(tier: TierView, moving: set[int]) -> list[int]:
    shown = zip(tier.counts, tier.hashes, strict=True)
    plain = [min(count, 126) + 1 if count else int(name is not None) for count, name in shown]
    return [code + COPIED * (block in moving) for block, code in enumerate(plain)]


def test_codes_are_right_at_every_step_of_a_crowded_run() -> None:
    sim = Simulation(18, num_host_blocks=9, max_num_batched_tokens=12, preemption_mode="swap")
    clock = Clock()
    painter = Painter(sim.scheduler, clock)
    for i in range(8):
        sim.add(request(str(i), [i % 2] * (5 + i), 8, n=1 + i % 3, priority=i % 2))
    kinds = set()
    while sim.scheduler.live_requests:
        sim.step()
        shown, view = look(painter, clock), describe_blocks(sim.scheduler)
        assert shown.device == expected(view.device, set())
        assert shown.host == expected(view.host, set())
        heading = shown.heading
        assert heading.device.cached == view.device.cached
        assert heading.device.used == view.device.total - 1 - view.device.free
        assert heading.host.used == view.host.total - view.host.free
        assert (heading.low, heading.high) == sim.scheduler.watermarks
        kinds |= {*shown.device}
    assert {0, 1, 2, 3} <= kinds


def test_what_a_plan_in_flight_copies_is_marked_on_both_tiers() -> None:
    sim = Simulation(30, num_host_blocks=20, write_behind_blocks=4)
    clock = Clock()
    painter = Painter(sim.scheduler, clock)
    sim.add(request("r", list(range(12)), 6))
    sim.step()
    plan = sim.scheduler.schedule(1.0)
    assert plan is not None and plan.store
    shown, view = look(painter, clock), describe_blocks(sim.scheduler)
    assert shown.device == expected(view.device, {source for source, _ in plan.store})
    assert shown.host == expected(view.host, {target for _, target in plan.store})


def test_many_tables_are_126_or_more() -> None:
    from array import array

    made = codes(array("I", [0, 0, 1, 125, 126, 5000]), bytearray([0, 1, 1, 1, 0, 1]), [5])
    assert made.tolist() == [0, 1, 2, 126, 127, 127 + COPIED]


def test_a_large_pool_is_written_as_runs_and_never_takes_more_than_a_byte_a_block() -> None:
    sim = Simulation(5000)
    clock = Clock()
    painter = Painter(sim.scheduler, clock)
    assert look(painter, clock).heading.device.runs == 1
    sim.add(request("r", list(range(40)), 4))
    sim.step()
    shown = look(painter, clock)
    assert shown.heading.device.size < 100
    assert shown.device == expected(describe_blocks(sim.scheduler).device, set())
    for block in range(1, 5000, 2):
        sim.scheduler.cache.pool.named[block] = 1
    shown = look(painter, clock)
    assert (shown.heading.device.runs, shown.heading.device.size) == (-1, 5000)


def test_all_who_look_at_once_see_the_same_picture() -> None:
    sim = Simulation(30)
    clock = Clock()
    painter = Painter(sim.scheduler, clock)
    sim.add(request("r", list(range(10)), 6))
    sim.step()
    before = look(painter, clock)
    sim.step()
    clock.now += LOOK_SECONDS / 2
    again = read_picture(painter.paint(Look()))
    assert again.heading.now == before.heading.now and again.device == before.device
    assert look(painter, clock).heading.now > before.heading.now


def test_what_is_pointed_at_is_as_it_is_now() -> None:
    sim = Simulation(30)
    clock = Clock()
    painter = Painter(sim.scheduler, clock)
    sim.add(request("r", list(range(10)), 6))
    sim.step()
    assert look(painter, clock).heading.request is None
    sim.step()
    heading = read_picture(painter.paint(Look(request="r", tier="device", block=1))).heading
    (item,) = describe_blocks(sim.scheduler).requests
    assert heading.request is not None and heading.block is not None
    assert heading.request.tokens == item.sequences[0].tokens
    assert heading.request.table == item.sequences[0].table
    assert [each.request for each in heading.block.holders] == ["r"]
    gone = look(painter, clock, request="nobody", block=30).heading
    assert gone.request is None and gone.block is None


def test_the_latest_steps_are_kept() -> None:
    painter = Painter(Simulation(8).scheduler, Clock())
    for i in range(STEPS_KEPT + 3):
        painter.stepped(float(i), i, 0.2, 0.1)
    steps = read_picture(painter.paint(Look())).heading.steps
    assert len(steps) == STEPS_KEPT
    assert tuple(steps[-1]) == (STEPS_KEPT + 2.0, STEPS_KEPT + 2, 0.2, 0.1)
