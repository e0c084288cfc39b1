"""Plans that were lost with memory operations of each kind: nothing may rely on them afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.plan import StepPlan
from tests.scheduler.simulation import Simulation, request

pytestmark = pytest.mark.parametrize("executed", [False, True], ids=["plan", "result"])


def swapping(**options: Any) -> Simulation:
    settings: dict[str, Any] = {
        "num_host_blocks": 20, "preemption_mode": "swap", "write_behind_blocks": 0, "ranks": 2,
    } | options  # fmt: skip
    return Simulation(**settings)


def kinds(plan: StepPlan) -> set[str]:
    """Operations that a plan has beside its work."""
    operations = ("swap_out", "swap_in", "copy", "store", "fork", "append", "replace", "grow")
    return {name for name in operations if getattr(plan, name)}


def lose(sim: Simulation, executed: bool, *expected: str) -> StepPlan:
    lost = sim.lose(executed=executed)
    assert lost is not None and kinds(lost) == set(expected)
    sim.check_invariants()
    return lost


def finish(sim: Simulation) -> None:
    sim.run()
    sim.check_invariants()
    sim.check_answers()
    sim.check_empty()


def test_swap_out(executed: bool) -> None:
    sim = swapping(max_num_seqs=1)
    sim.add(request("r", list(range(10)), 9, priority=1))
    sim.step()
    sim.preempt("r")
    sim.add(request("urgent", [50] * 6, 3))
    lose(sim, executed, "swap_out")
    host = sim.scheduler.cache.host
    assert host.used == host.cached == 0 and host.names == [None] * 20
    assert sim.scheduler.groups[0].sequences[0].saved == 0
    finish(sim)
    assert sim.scheduler.counters.swapped_in == 0


def test_swap_out_of_samples_takes_back_what_each_of_them_pinned(executed: bool) -> None:
    sim = swapping(max_num_seqs=3, write_behind_blocks=8)
    sim.add(request("r", list(range(10)), 9, n=3, temperature=1.0, priority=1))
    for _ in range(3):
        sim.step()
    sim.preempt("r")
    sim.add(request("urgent", [50] * 6, 3, n=3, temperature=1.0))
    lose(sim, executed, "swap_out", "fork")
    host = sim.scheduler.cache.host
    assert host.used == 0
    finish(sim)


def test_swap_out_that_no_plan_carries_yet(executed: bool) -> None:
    sim = swapping()
    sim.add(request("r", list(range(10)), 9))
    sim.step()
    if executed:  # what is in flight besides is lost too
        sim.plan()
        sim.flights.clear()
    sim.preempt("r")
    sim.send(sim.scheduler.resync())
    assert sim.scheduler.cache.host.used == 0
    sim.check_invariants()
    finish(sim)


def test_swap_in_of_a_preempted_request(executed: bool) -> None:
    sim = swapping(max_num_seqs=1)
    sim.add(request("r", list(range(10)), 9, priority=1))
    sim.step()
    sim.preempt("r")
    sim.add(request("urgent", [50] * 200, 3))
    sim.step_until(lambda: "urgent" in sim.finished)
    lose(sim, executed, "swap_in")
    assert sim.scheduler.num_running == 0  # it starts again
    finish(sim)
    assert sim.scheduler.counters.host_prefix_hits == 0


def test_swap_in_of_a_prefix(executed: bool) -> None:
    sim = swapping(write_behind_blocks=8)
    prompt = list(range(10))
    sim.add(request("before", prompt, 9))
    sim.run()
    sim.scheduler.cache.pool.reset()
    sim.add(request("r", prompt, 9))
    lost = lose(sim, executed, "swap_in")
    assert lost.add[0].computed == 8
    finish(sim)
    assert sim.plans[-1].step > lost.step
    assert {event.request_id: event.cached_tokens for event in sim.events}["r"] == 8


@pytest.mark.parametrize("n", [2, 4])
def test_copy(executed: bool, n: int) -> None:
    sim = swapping()
    sim.add(request("r", list(range(10)), 9, n=n, temperature=1.0))
    sim.step()
    lost = lose(sim, executed, "copy", "replace")
    assert len(lost.copy) == n - 1
    finish(sim)


def test_store(executed: bool) -> None:
    sim = swapping(write_behind_blocks=8)
    sim.add(request("r", list(range(10)), 9))
    sim.step()
    lose(sim, executed, "store")
    host = sim.scheduler.cache.host
    assert host.names == [None] * 20 and host.cached == 0
    assert sim.running  # what it has on the device is not touched
    sim.preempt("r")  # relies on nothing that was stored
    finish(sim)
    assert sim.scheduler.counters.swapped_out >= 3


@pytest.mark.parametrize("size", [6, 8])
def test_fork_of_samples(executed: bool, size: int) -> None:
    sim = swapping()
    sim.add(request("r", list(range(size)), 5, n=3, temperature=1.0))
    lose(sim, executed, "fork")
    (group,) = sim.scheduler.groups
    assert len(group.sequences) == 1 and not group.forked
    finish(sim)


def test_fork_of_samples_of_which_one_was_aborted(executed: bool) -> None:
    sim = swapping()
    sim.add(request("r", list(range(6)), 5, n=3, temperature=1.0))
    sim.plan()
    assert sim.scheduler.abort("r", 0)
    sim.flights.clear()
    sim.send(sim.scheduler.resync())
    sim.check_invariants()
    (group,) = sim.scheduler.groups
    assert group.indices == [1, 2] and group.rows() == 2
    del sim.samples["r"][0]
    finish(sim)


def test_fork_of_samples_of_which_one_is_left(executed: bool) -> None:
    sim = swapping()
    sim.add(request("r", list(range(6)), 5, n=2, temperature=1.0))
    sim.plan()
    assert sim.scheduler.abort("r", 0)
    if executed:
        sim.receive()
    sim.lose(executed=executed)
    assert not sim.scheduler.abort("r", 0)
    del sim.samples["r"][0]
    finish(sim)


@pytest.mark.parametrize("steps", range(1, 6))
def test_fork_and_append_of_beams(executed: bool, steps: int) -> None:
    sim = swapping()
    sim.add(request("r", list(range(6)), 7, beam_width=3, n=3))
    for _ in range(steps):
        sim.step()
    lost = sim.lose(executed=executed)
    assert lost is not None and lost.append
    sim.check_invariants()
    finish(sim)


def test_everything_at_once_and_again(executed: bool) -> None:
    sim = Simulation(20, num_host_blocks=9, ranks=2, depth=2, max_num_batched_tokens=12)
    for i in range(6):
        more: dict[str, Any] = {"beam_width": 2} if i % 3 == 2 else {"n": 1 + i % 3}
        sim.add(request(str(i), [i % 2] * (5 + i), 8, **more, temperature=1.0))
    while sim.scheduler.live_requests:
        for _ in range(3):
            sim.step()
        sim.lose(executed=executed)
        sim.check_invariants()
    finish(sim)


def test_reserved_blocks_are_kept(executed: bool) -> None:
    sim = Simulation(30, allocation="oracle")
    sim.add(request("r", list(range(6)), 14))
    sim.step()
    used = sim.scheduler.cache.pool.used
    sim.plan()
    sim.lose(executed=executed)
    assert sim.scheduler.cache.pool.used <= used
    finish(sim)
