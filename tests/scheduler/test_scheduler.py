from __future__ import annotations

import pytest

from octavo.scheduler.checks import check
from octavo.scheduler.errors import InvalidRequest, NeverFits, QueueFull
from octavo.scheduler.plan import Work
from octavo.scheduler.request import Finish
from tests.scheduler.simulation import Simulation, expected, request


def works(sim: Simulation) -> list[Work]:
    plan = sim.plan()
    assert plan is not None
    return plan.work


def test_a_prompt_is_computed_in_chunks_and_sampled_at_its_end() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    sim.add(request("a", list(range(19)), 2))
    seen = []
    for _ in range(4):
        seen += works(sim)
        sim.receive()
    assert [(w.start, w.count, w.sample) for w in seen] == [
        (0, 8, False), (8, 8, False), (16, 3, True), (19, 1, True),
    ]  # fmt: skip


def test_decodes_come_before_prompts_and_share_the_budget() -> None:
    sim = Simulation(max_num_batched_tokens=8, max_num_seqs=4)
    sim.add(request("a", [1, 2, 3], 9))
    sim.step()
    sim.add(request("b", list(range(20)), 2))
    assert [w.count for w in works(sim)] == [1, 7]
    sim.receive()
    assert [w.count for w in works(sim)] == [1, 7]


def test_first_come_first_served_within_a_priority() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.add(
        request("late", [1], 1, priority=1),
        request("first", [2], 1),
        request("second", [3], 1),
        request("urgent", [4], 1, priority=-1),
    )
    sim.run()
    assert list(sim.finished) == ["urgent", "first", "second", "late"]


def test_answers_end_by_length_or_by_a_stop_token() -> None:
    sim = Simulation()
    free = request("free", [1, 2, 3], 12)
    answer = expected(free)
    stopped = request("stopped", [1, 2, 3], 12, stop_token_ids=(answer[4],))
    sim.add(free, stopped)
    sim.run()
    assert sim.answers["free"] == answer and sim.finished["free"] is Finish.LENGTH
    assert sim.answers["stopped"] == expected(stopped)
    assert sim.finished["stopped"] is Finish.STOP
    assert [e.stop_token for e in sim.events if e.finish is Finish.STOP] == [answer[4]]


def test_a_prompt_can_be_scored_without_an_answer() -> None:
    sim = Simulation()
    sim.add(request("score", list(range(10)), 0))
    sim.run()
    assert sim.answers["score"] == [] and sim.finished["score"] is Finish.LENGTH


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 11, 12, 13])
def test_the_last_token_of_a_cached_prompt_is_computed(length: int) -> None:
    sim = Simulation()
    prompt = list(range(length))
    sim.add(request("cold", prompt, 1))
    sim.run()
    sim.add(request("warm", prompt, 1))
    sim.run()
    cached = {e.request_id: e.cached_tokens for e in sim.events}
    assert cached == {"cold": 0, "warm": (length - 1) // 4 * 4}
    assert sim.answers["warm"] == sim.answers["cold"]


def test_equal_prompts_at_once_are_computed_once() -> None:
    sim = Simulation(max_num_seqs=16, max_num_batched_tokens=64)
    requests = [request(str(i), list(range(21)), 3) for i in range(16)]
    sim.add(*requests)
    sim.run()
    assert sim.scheduler.counters.prompt_computed == 21 + 15
    assert all(sim.answers[r.id] == expected(r) for r in requests)


def test_a_request_behind_one_that_waits_for_blocks_goes_ahead() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    sim.add(
        request("leader", list(range(22)), 2),
        request("follower", list(range(22)), 2),
        request("other", [50, 51], 2),
    )
    sim.run()
    assert list(sim.finished) == ["leader", "other", "follower"]
    assert sim.scheduler.counters.prompt_computed == 22 + 2 + 2


def test_one_that_waits_for_blocks_looks_again_once_all_of_them_are_there() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    prompt = list(range(25))
    sim.add(request("leader", prompt, 2))
    sim.step()
    sim.add(request("follower", prompt, 2))
    assert sim.scheduler.awaits_result
    (follower,) = sim.scheduler.roster.live["follower"].sequences
    waited = set[bytes | None]()
    while follower.row is None:
        waited.add(follower.waits_for)
        sim.step()
    assert waited == {follower.hashes(4)[5]}
    assert follower.group.cached == 24
    sim.run()
    sim.check_answers()


def test_it_says_when_a_plan_would_come_too_early_for_the_first_in_the_queue() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    assert not sim.scheduler.awaits_result
    sim.add(request("leader", list(range(12)), 2))
    sim.plan()
    sim.add(request("follower", list(range(12)), 2))
    assert sim.scheduler.awaits_result
    sim.receive()
    sim.plan()
    sim.receive()
    assert not sim.scheduler.awaits_result
    sim.run()


def test_one_that_leaves_does_not_take_the_promise_of_another_with_it() -> None:
    sim = Simulation(max_num_batched_tokens=14)
    prompt = list(range(26))
    sim.add(request("leader", prompt, 2))
    sim.step()
    sim.add(request("scored", prompt, 2, prompt_logprobs=0), request("follower", prompt, 2))
    plan = sim.plan()
    assert plan is not None and [work.count for work in plan.work] == [12, 2]
    assert sim.scheduler.awaits_result  # the follower, for what the leader computes
    sim.scheduler.abort("scored")
    assert sim.scheduler.awaits_result
    sim.receive()
    sim.run()
    sim.check_answers("leader", "follower")


def test_no_more_run_than_a_step_has_tokens_for() -> None:
    sim = Simulation(max_num_batched_tokens=3, max_num_seqs=8)
    sim.add(*(request(str(i), [i], 6) for i in range(6)))
    sim.step_until(lambda: sim.scheduler.num_running == 3)
    assert [work.count for work in works(sim)] == [1, 1, 1]
    assert sim.scheduler.num_running == 3
    sim.receive()
    sim.run()
    sim.check_answers()


@pytest.mark.parametrize("fate", ["abort", "preempt"])
def test_those_who_wait_for_blocks_go_on_without_the_one_that_computed_them(fate: str) -> None:
    sim = Simulation(max_num_batched_tokens=8)
    leader, follower = (request(name, list(range(24)), 2) for name in ("leader", "follower"))
    sim.add(leader, follower)
    sim.step()
    if fate == "abort":
        sim.scheduler.abort("leader")
    else:
        sim.scheduler._preemption._preempt(sim.scheduler.roster.running[0])
    check(sim.scheduler)
    sim.run()
    assert sim.answers["follower"] == expected(follower)


def test_salts_keep_prefixes_apart() -> None:
    sim = Simulation()
    for name, salt in (("a1", "a"), ("b", "b"), ("a2", "a")):
        sim.add(request(name, list(range(9)), 1, salt=salt))
        sim.run()
    assert {e.request_id: e.cached_tokens for e in sim.events} == {"a1": 0, "b": 0, "a2": 8}


def test_without_prefix_caching_nothing_is_shared() -> None:
    sim = Simulation(enable_prefix_caching=False)
    for name in ("a", "b"):
        sim.add(request(name, list(range(9)), 1))
        sim.run()
    assert [e.cached_tokens for e in sim.events] == [0, 0]
    assert sim.scheduler.counters.prefix_hits == 0


def test_prompt_logprobs_read_no_hits_but_publish() -> None:
    sim = Simulation()
    sim.add(request("a", list(range(9)), 1))
    sim.run()
    sim.add(request("scored", list(range(13)), 1, prompt_logprobs=1))
    assert works(sim)[0].start == 0
    sim.scheduler.abort("scored")
    sim.receive()


def test_the_last_admitted_is_preempted_and_resumes_at_the_front() -> None:
    sim = Simulation(num_blocks=9, max_num_seqs=2)  # 8 blocks of 4
    requests = [
        request("old", [1] * 8, 16), request("young", [2] * 8, 16), request("new", [3] * 8, 4)
    ]  # fmt: skip
    sim.add(*requests)
    while not sim.scheduler.counters.preemptions:
        sim.step()
    assert [group.request.id for group in sim.scheduler.roster.running] == ["old"]
    assert [group.request.id for group in sim.scheduler.roster.waiting] == ["young", "new"]
    while sim.scheduler.num_running == 1 and "old" not in sim.finished:
        sim.step()
    sim.step()
    assert sim.scheduler.roster.running[0].request.id == "young"
    sim.run()
    assert all(sim.answers[r.id] == expected(r) for r in requests)


def test_the_lowest_priority_is_preempted_first_however_old() -> None:
    sim = Simulation(num_blocks=9, max_num_seqs=2)
    sim.add(request("background", [1] * 8, 16, priority=5))
    sim.step()
    sim.add(request("normal", [2] * 8, 16))
    while not sim.scheduler.counters.preemptions:
        sim.step()
    assert [group.request.id for group in sim.scheduler.roster.running] == ["normal"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    sim = Simulation(num_blocks=9, max_num_seqs=4, watermark_low=0, watermark_high=0)
    sim.add(request("old", [1] * 8, 16), request("young", [2] * 8, 16))
    while True:
        before = sim.scheduler.counters.preemptions
        sim.add(request(str(sim.now), [3], 1))
        plan = sim.plan()
        sim.receive()
        if sim.scheduler.counters.preemptions > before:
            assert plan is not None and plan.add == []
            return


def test_shared_blocks_are_not_counted_as_gained() -> None:
    sim = Simulation(num_blocks=64, max_num_seqs=4)
    sim.add(request("a", list(range(16)) + [20], 8), request("b", list(range(16)) + [21], 8))
    for _ in range(2):
        sim.step()
    a, b = sim.scheduler.roster.running
    cache = sim.scheduler.cache
    assert cache.gives_back(a) and cache.gives_back(b)
    table = b.sequences[0].table
    own = table.pop()  # as if b held nothing of its own
    assert not cache.gives_back(b)
    table.append(own)


def test_two_that_need_over_half_the_pool_both_finish() -> None:
    sim = Simulation(num_blocks=17, max_num_seqs=2)  # 64 tokens
    requests = [request("a", [1] * 8, 50), request("b", [2] * 8, 50)]
    sim.add(*requests)
    sim.run()
    assert all(sim.answers[r.id] == expected(r) for r in requests)
    assert sim.scheduler.counters.preemptions <= 2


def test_admission_stops_below_the_low_watermark_and_resumes_at_the_high_one() -> None:
    sim = Simulation(
        num_blocks=101, max_num_seqs=64, watermark_low=0.1, watermark_high=0.4,
        max_num_batched_tokens=4096,
    )  # fmt: skip
    pool = sim.scheduler.cache.pool
    for i in range(40):
        sim.add(request(str(i), [i] * 16, 4 + 2 * i))
    sim.step()
    assert pool.free >= 10  # admissions alone never go below low
    sim.step_until(lambda: pool.free < 10)
    held = 0
    while pool.free < 40:
        plan = sim.plan()
        assert plan is not None and not plan.add
        sim.receive()
        held += pool.free >= 10 + 5  # there would have been room for one
    assert held
    plan = sim.plan()
    assert plan is not None and plan.add
    sim.receive()
    sim.step_until(lambda: sim.scheduler.num_waiting == 0 or 10 < pool.free < 40)
    assert sim.scheduler._admitting  # until it is below low again


def test_watermarks_never_hold_an_idle_engine() -> None:
    sim = Simulation(num_blocks=11, watermark_low=0.5, watermark_high=0.9)
    big = request("big", list(range(36)), 4)
    sim.add(big)
    sim.run()
    assert sim.answers["big"] == expected(big)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    sim = Simulation(num_blocks=5, max_model_len=64)
    with pytest.raises(NeverFits, match="16 tokens.*prompt has 15.*max_tokens is 2.*together 17"):
        sim.add(request("pool", [1] * 15, 2))
    with pytest.raises(NeverFits, match="the model's context holds 64 tokens"):
        sim.add(request("context", [1] * 60, 5))
    with pytest.raises(InvalidRequest, match="no tokens"):
        sim.add(request("empty", [], 5))
    assert sim.scheduler.counters.rejections == 3
    fits = request("fits", [1] * 14, 2)
    sim.add(fits)
    with pytest.raises(InvalidRequest, match="already running"):
        sim.add(fits)
    sim.run()
    assert sim.answers["fits"] == expected(fits)


def test_the_peak_of_used_blocks_is_remembered() -> None:
    sim = Simulation()
    sim.add(request("large", list(range(30)), 2))
    sim.run()
    sim.add(request("small", [1, 2], 2))
    sim.run()
    assert sim.scheduler.counters.peak_blocks == 8


def test_the_queue_is_bounded() -> None:
    sim = Simulation(max_num_queued_reqs=2)
    sim.add(request("a", [1], 1), request("b", [1], 1))
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        sim.add(request("c", [1], 1))
    sim.step()
    sim.add(request("c", [1], 1))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", range(8))
def test_an_abort_frees_everything_at_once_in_every_state(depth: int, steps: int) -> None:
    sim = Simulation(num_blocks=9, max_num_seqs=2, max_num_batched_tokens=6, depth=depth)
    sim.add(request("a", [1] * 10, 16), request("b", [2] * 10, 16), request("c", [3] * 10, 16))
    for _ in range(steps):
        sim.step()
    for name in ("a", "b", "c"):
        assert sim.scheduler.abort(name)
        check(sim.scheduler)
    assert sim.scheduler.cache.pool.used == 0
    assert not sim.scheduler.abort("a")
    while sim.flights:
        assert sim.receive() == []
    after = request("after", [9] * 20, 8)
    sim.add(after)
    sim.run()
    assert sim.answers["after"] == expected(after)


def test_rows_that_end_are_dropped_before_their_numbers_are_used_again() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.add(request("a", [1], 1), request("b", [2], 1))
    sim.step()
    plan = sim.plan()
    assert plan is not None and plan.drop == [0] and plan.add[0].row == 0


def test_a_worker_that_missed_a_plan_is_given_everything_again() -> None:
    sim = Simulation(depth=2, max_num_batched_tokens=8)
    requests = [request(str(i), [i] * 11, 9, temperature=1.0, seed=i) for i in range(3)]
    sim.add(*requests)
    for _ in range(4):
        sim.step()
    lost = sim.scheduler.schedule(sim.now)  # goes out, but arrives nowhere
    assert lost is not None
    sim.flights.clear()
    sim.send(sim.scheduler.resync())
    check(sim.scheduler)
    sim.run()
    assert all(sim.answers[r.id] == expected(r) for r in requests)
