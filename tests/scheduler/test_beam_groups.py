"""Beams in the engine: they share, step, give way and come back together."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.checks import check
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.request import Finish, Request
from tests.scheduler.simulation import Simulation, expected, request


def beams(name: str, prompt: list[int], width: int, max_tokens: int = 8, **more: Any) -> Request:
    return request(name, prompt, max_tokens, beam_width=width, n=width, **more)


def test_two_beams_on_four_shared_blocks_take_six_not_ten() -> None:
    sim = Simulation()
    sim.add(beams("r", list(range(16)), 2))
    sim.step()
    sim.plan()
    one, two = (seq.table for seq in sim.running)
    assert one[:4] == two[:4] and one[4] != two[4]
    use = measure_memory(sim.scheduler)
    assert (use.blocks, use.unshared_blocks) == (6, 10)
    assert sim.scheduler.counters.copied == 0  # the prompt fills its blocks
    sim.run()
    sim.check_answers()
    sim.check_empty()


@pytest.mark.parametrize("width", [1, 2, 4, 6])
@pytest.mark.parametrize("size", [5, 8])
def test_beams_equal_the_oracle(width: int, size: int) -> None:
    sim = Simulation()
    item = beams("r", list(range(size)), width, 12, length_penalty=0.5, stop_token_ids=(3, 9, 40))
    sim.add(item)
    sim.run()
    sim.check_answers()
    sim.check_empty()
    events = [event for event in sim.events if event.request_id == "r"]
    assert [event.index for event in events] == list(range(width))
    scores = [event.score for event in events]
    assert None not in scores and scores == sorted(scores, key=lambda score: -(score or 0.0))
    for event in events:
        stopped = event.tokens[-1] in (3, 9, 40)
        assert event.finish is (Finish.STOP if stopped else Finish.LENGTH)
        assert event.stop_token == (event.tokens[-1] if stopped else None)
    assert sim.scheduler.counters.prompt_computed == size


def test_the_best_beams_come_at_the_end_and_only_as_many_as_asked_for() -> None:
    sim = Simulation()
    sim.add(request("r", [1, 2, 3], 6, beam_width=4, n=2, logprobs=1))
    sim.run()
    sim.check_answers()
    assert [event.index for event in sim.events] == [0, 1]
    for event in sim.events:
        assert event.logprobs is not None and event.cumulative_logprob is not None
        assert [each.token for each in event.logprobs] == event.tokens
        assert event.cumulative_logprob == sum(each.logprob for each in event.logprobs)


def test_a_first_child_takes_the_place_of_its_parent() -> None:
    """Row and blocks included: the workers are told only of the other children."""
    sim = Simulation()
    sim.add(beams("r", list(range(16)), 3, 12))
    sim.run()
    sim.check_answers()
    forks = [plan for plan in sim.plans if plan.fork]
    assert forks and all(len(plan.append) == 3 for plan in sim.plans[1:])
    for plan in forks[1:]:
        assert len(plan.drop) == len(plan.fork)
        assert {fork.parent for fork in plan.fork}.isdisjoint(plan.drop)


def test_rows_are_kept_free_for_beams_however_few_are_asked_for() -> None:
    sim = Simulation(max_num_seqs=4)
    sim.add(request("wide", [1, 2], 6, beam_width=3, n=1), request("pair", [5], 6, n=2))
    sim.step()
    assert sim.scheduler.num_running == 1
    sim.run()
    sim.check_answers()


@pytest.mark.parametrize("budget", [3, 4, 7])
def test_beams_take_each_step_together(budget: int) -> None:
    """Also those that have more to compute again than their siblings."""
    sim = Simulation(max_num_batched_tokens=budget, preemption_mode="recompute")
    sim.add(beams("r", list(range(9)), 3))
    group = sim.scheduler.roster.live["r"]
    sim.step_until(lambda: group.sequences[0].generated == 4)
    sim.preempt("r")
    sim.scheduler.reset_prefix_cache()
    alone = 0
    while "r" not in sim.finished:
        plan = sim.plan()
        assert plan is not None
        assert sum(work.sample for work in plan.work) in (0, 3)
        alone += len(plan.work) < 3
        sim.receive()
    assert alone
    sim.check_answers()


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("caching", [True, False])
def test_beams_go_and_come_back_together_with_the_same_result(
    mode: str, steps: int, caching: bool
) -> None:
    sim = Simulation(
        num_host_blocks=40, preemption_mode=mode, enable_prefix_caching=caching,
        max_num_batched_tokens=6,
    )  # fmt: skip
    sim.add(beams("r", list(range(9)), 3))
    for _ in range(steps):
        sim.step()
    group = sim.scheduler.roster.live["r"]
    width = len(group.sequences)
    assert sim.preempt("r").outcome == mode
    assert sim.running == [] and sim.scheduler.cache.pool.used == 0
    assert (sim.scheduler.cache.host.used > 0) == (mode == "swap")
    sim.step()
    assert len(sim.running) == len(group.sequences) >= width
    assert sim.scheduler.cache.host.used == 0
    sim.run()
    sim.check_answers()
    sim.check_empty()
    assert sim.scheduler.counters.preemptions_swap == (mode == "swap")


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_beams_preempted_while_their_candidates_are_in_flight_go_on(mode: str) -> None:
    sim = Simulation(num_host_blocks=40, preemption_mode=mode)
    sim.add(beams("r", list(range(9)), 3))
    sim.step()
    sim.step()
    sim.plan()
    sim.preempt("r")
    assert sim.scheduler.schedule(0.0) is None  # not before it is known who survives
    sim.receive()
    sim.run()
    sim.check_answers()
    sim.check_empty()


def test_swapped_beams_share_their_blocks_on_the_host() -> None:
    sim = Simulation(num_host_blocks=6, preemption_mode="swap", write_behind_blocks=0)
    sim.add(beams("r", list(range(16)), 2))
    sim.step()
    sim.plan()
    assert sim.preempt("r").outcome == "swap"
    host = sim.scheduler.cache.host
    assert host.used == 6 and sorted(host.pins) == [1, 1, 2, 2, 2, 2]
    sim.receive()
    sim.scheduler.cache.pool.reset()  # else the four are still there
    plan = sim.plan()
    assert plan is not None and len(plan.swap_out) == 6 and 5 <= len(plan.swap_in) <= 6
    one, two = (add.blocks for add in plan.add)
    assert one[:4] == two[:4]
    sim.receive()
    sim.run()
    sim.check_answers()


@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("host", [0, 8, 60])
def test_beams_alone_equal_beams_together_under_pressure(mode: str, host: int) -> None:
    items = [
        beams(f"r{i}", [i % 3] * (5 + i), 2 + i % 3, 10, length_penalty=float(i % 2))
        for i in range(6)
    ]
    together = Simulation(24, num_host_blocks=host, preemption_mode=mode, max_num_seqs=12)
    together.add(*items)
    together.run()
    together.check_empty()
    assert together.scheduler.counters.preemptions
    for item in items:
        alone = Simulation()
        alone.add(item)
        alone.run()
        assert alone.samples[item.id] == together.samples[item.id]
        assert alone.samples[item.id][0] == expected(item)


def test_an_abort_ends_all_beams_at_once() -> None:
    sim = Simulation()
    sim.add(beams("r", list(range(9)), 3))
    sim.step()
    sim.step()
    sim.plan()
    assert sim.scheduler.abort("r", 1)  # beams have no numbers before the end
    check(sim.scheduler)
    sim.check_empty()
    assert sim.receive() == []


def test_beams_without_an_answer_score_the_prompt() -> None:
    sim = Simulation()
    sim.add(beams("r", [1, 2, 3], 2, 0))
    sim.run()
    assert [(e.index, e.tokens, e.finish) for e in sim.events] == [
        (0, [], Finish.LENGTH),
        (1, [], Finish.LENGTH),
    ]
