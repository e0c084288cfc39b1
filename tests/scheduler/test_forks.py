"""Samples of one prompt: computed once, stored once, and copied only where they part."""

from __future__ import annotations

import pytest

from octavo.scheduler.checks import check
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.plan import Fork, Work
from octavo.scheduler.request import Finish, Request
from octavo.scheduler.sampling import mix_seed
from tests.scheduler.simulation import Simulation, expected, request


def samples(size: int, n: int, max_tokens: int = 6, name: str = "r", seed: int = 11) -> Request:
    return request(name, list(range(size)), max_tokens, n=n, temperature=1.0, seed=seed)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_prompt_is_computed_once_for_all_samples(n: int) -> None:
    sim = Simulation()
    sim.add(samples(10, n, 5))
    sim.run()
    sim.check_answers()
    sim.check_empty()
    counters = sim.scheduler.counters
    assert counters.prompt_computed == 10
    assert counters.computed == 10 + n * 4  # nothing follows the last token
    assert len({tuple(answer) for answer in sim.samples["r"].values()}) == n


@pytest.mark.parametrize(("size", "full"), [(3, 0), (4, 1), (10, 2), (11, 2), (12, 3)])
def test_the_blocks_of_the_prompt_are_stored_once(size: int, full: int) -> None:
    sim = Simulation()
    sim.add(samples(size, 4))
    sim.step()
    sim.step()
    tables = [seq.table for seq in sim.running]
    assert len(tables) == 4
    assert all(table[:full] == tables[0][:full] for table in tables)
    pool = sim.scheduler.cache.pool
    assert all(pool.references[block] == 4 for block in tables[0][:full])
    assert pool.used == full + 4
    assert measure_memory(sim.scheduler).unshared_blocks == 4 * (full + 1)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 8, 9, 12])
def test_only_the_partial_last_block_is_copied_and_the_last_holder_keeps_it(
    size: int, n: int
) -> None:
    sim = Simulation()
    sim.add(samples(size, n))
    sim.step()
    shared = sim.running[0].table[:]
    plan = sim.plan()
    assert plan is not None
    copies = n - 1 if size % 4 else 0
    assert len(plan.copy) == len(plan.replace) == copies
    assert len(plan.grow) == (0 if size % 4 else n)
    assert all(source == shared[-1] for source, _ in plan.copy)
    tables = {seq.row: seq.table for seq in sim.running}
    for (_, target), replace in zip(plan.copy, plan.replace, strict=True):
        assert replace.place == size // 4
        assert tables[replace.row][replace.place] == replace.block == target
    if copies:
        assert sum(table[-1] == shared[-1] for table in tables.values()) == 1
    sim.receive()
    sim.run()
    assert sim.scheduler.counters.copied == copies
    sim.check_answers()


def test_a_sample_left_alone_with_the_partial_block_writes_in_place() -> None:
    sim = Simulation()
    sim.add(samples(6, 2))
    sim.step()
    sim.scheduler.abort("r", 0)
    plan = sim.plan()
    assert plan is not None and plan.copy == [] and plan.replace == []
    sim.receive()
    sim.run()
    assert sim.samples["r"][1] == expected(sim.requests["r"], 1)


def test_samples_get_rows_and_seeds_of_their_own_beside_the_first() -> None:
    sim = Simulation()
    sim.add(samples(6, 3, seed=11))
    plan = sim.plan()
    assert plan is not None
    (born,) = plan.add
    rows = [born.row, *(fork.row for fork in plan.fork)]
    assert len(set(rows)) == 3 and born.sampling.seed == 11
    assert plan.fork == [
        Fork(rows[1], rows[0], mix_seed(11, 1)),
        Fork(rows[2], rows[0], mix_seed(11, 2)),
    ]
    assert plan.work == [
        Work(rows[0], 0, 6, True), Work(rows[1], 6, 0, True), Work(rows[2], 6, 0, True),
    ]  # fmt: skip


def test_a_prompt_in_chunks_is_forked_with_its_last_chunk() -> None:
    sim = Simulation(max_num_batched_tokens=4)
    sim.add(samples(10, 3))
    forked = []
    for _ in range(3):
        plan = sim.plan()
        assert plan is not None
        forked.append(len(plan.fork))
        sim.receive()
    assert forked == [0, 0, 2]
    sim.run()
    sim.check_answers()


@pytest.mark.parametrize(("seats", "budget"), [(4, 64), (8, 4)])
def test_rows_are_kept_free_for_samples_that_are_not_forked_yet(seats: int, budget: int) -> None:
    sim = Simulation(max_num_seqs=seats, max_num_batched_tokens=budget)
    sim.add(samples(1, 3, name="wide"), request("narrow", [50], 6, n=2, temperature=1.0))
    sim.step()
    assert sim.scheduler.num_running == 1  # 3 rows and 2 are more than 4
    sim.run()
    sim.check_answers()


@pytest.mark.parametrize(("busy", "admitted"), [(12, True), (16, False)])
def test_a_request_is_let_in_only_where_all_its_samples_can_begin(
    busy: int, admitted: bool
) -> None:
    sim = Simulation(num_blocks=9, watermark_low=0, watermark_high=0)
    sim.add(request("busy", [50] * busy, 1), samples(8, 4, 3))
    plan = sim.plan()
    assert plan is not None
    assert (len(plan.add) == 2) == admitted  # 2 blocks for the prompt, 1 for each of 3 twins
    sim.receive()
    sim.run()
    sim.check_answers()


def test_samples_end_one_by_one_and_give_their_blocks_back() -> None:
    item = samples(9, 3, 12)
    answers = [expected(item, index) for index in range(3)]
    stop = next(token for token in answers[1] if token not in answers[0] + answers[2])
    sim = Simulation()
    sim.add(request("r", item.prompt, 12, n=3, temperature=1.0, seed=11, stop_token_ids=(stop,)))
    sim.step_until(lambda: any(event.finish for event in sim.events))
    assert [(e.index, e.finish) for e in sim.events if e.finish] == [(1, Finish.STOP)]
    assert [seq.index for seq in sim.running] == [0, 2] and "r" not in sim.finished
    sim.run()
    sim.check_answers()
    ends = {e.index: e.finish for e in sim.events if e.finish}
    assert ends == {0: Finish.LENGTH, 1: Finish.STOP, 2: Finish.LENGTH}
    sim.check_empty()


def test_an_abort_of_one_sample_takes_only_what_it_had_alone() -> None:
    sim = Simulation()
    sim.add(samples(10, 3, 9))
    sim.step()
    sim.step()
    pool = sim.scheduler.cache.pool
    used = pool.used
    assert not sim.scheduler.abort("r", 7)
    assert sim.scheduler.abort("r", 1)
    check(sim.scheduler)
    assert pool.used == used - 1
    assert not sim.scheduler.abort("r", 1)
    sim.run()
    assert {index: sim.samples["r"][index] for index in (0, 2)} == {
        index: expected(sim.requests["r"], index) for index in (0, 2)
    }
    sim.check_empty()


def test_a_request_ends_with_its_last_sample() -> None:
    sim = Simulation()
    sim.add(samples(10, 2, 9))
    sim.step()
    assert sim.scheduler.abort("r", 0) and sim.scheduler.live_requests == ["r"]
    assert sim.scheduler.abort("r", 1) and sim.scheduler.live_requests == []
    sim.check_empty()
    (group,) = sim.scheduler.take_ended()
    assert group.finish is Finish.ABORT
    assert not sim.scheduler.abort("r")


def test_a_sample_may_be_aborted_while_it_is_swapped_out() -> None:
    sim = Simulation(num_host_blocks=20, preemption_mode="swap")
    sim.add(samples(10, 3, 9))
    sim.step()
    sim.step()
    sim.preempt("r")
    held = sim.scheduler.cache.host.used
    assert sim.scheduler.abort("r", 2)
    check(sim.scheduler)
    assert sim.scheduler.cache.host.used == held - 1
    sim.run()
    for index in (0, 1):
        assert sim.samples["r"][index] == expected(sim.requests["r"], index)
    sim.check_empty()


def test_samples_that_are_computed_again_share_what_they_have_in_common() -> None:
    sim = Simulation(max_num_batched_tokens=5, preemption_mode="recompute")
    sim.add(samples(14, 3, 9))
    sim.step_until(lambda: len(sim.samples["r"][0]) == 2)
    sim.preempt("r")
    sim.scheduler.reset_prefix_cache()  # so that nothing is found
    sim.step()
    first, second, third = sim.running
    assert first.table[:3] == second.table[:3] == third.table[:3]
    assert second.is_held() and third.is_held()  # until the first has computed it
    sim.run()
    sim.check_answers()
    undisturbed, again = 14 + 3 * 8, 12 + 3 * 3
    assert sim.scheduler.counters.computed == undisturbed + again


@pytest.mark.parametrize("generated", range(1, 8))
def test_samples_that_are_equal_compute_their_last_tokens_each(generated: int) -> None:
    sim = Simulation(preemption_mode="recompute")
    sim.add(request("r", list(range(6)), 9, n=3))  # greedy
    sim.step_until(lambda: len(sim.samples["r"][0]) == generated)
    sim.preempt("r")
    sim.step()
    tables = [seq.table for seq in sim.running]
    shared = (6 + generated - 1) // 4
    assert all(table[:shared] == tables[0][:shared] for table in tables)
    sim.run()
    sim.check_answers()


def test_those_who_wait_for_a_sample_that_is_aborted_start_again() -> None:
    sim = Simulation(max_num_batched_tokens=5, preemption_mode="recompute")
    sim.add(samples(14, 3, 9))
    sim.step_until(lambda: len(sim.samples["r"][0]) == 2)
    sim.preempt("r")
    sim.scheduler.reset_prefix_cache()
    sim.step()
    assert sim.scheduler.abort("r", 0)
    check(sim.scheduler)
    sim.run()
    for index in (1, 2):
        assert sim.samples["r"][index] == expected(sim.requests["r"], index)


def test_a_prompt_to_be_scored_is_scored_once_for_all_samples() -> None:
    sim = Simulation()
    sim.add(samples(6, 3, 0))
    sim.run()
    assert [(e.index, e.tokens, e.finish) for e in sim.events] == [
        (index, [], Finish.LENGTH) for index in range(3)
    ]
    sim.check_empty()
