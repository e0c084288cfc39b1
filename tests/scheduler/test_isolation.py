"""Who may find what: scopes of the prefix cache, scored prompts, and forgetting it all."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.checks import check
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Logprob, TokenEvent
from tests.scheduler.simulation import Simulation, request

PROMPT = list(range(18))
ADAPTERS = ("a", "b", "x", "xy")


def cached(sim: Simulation, name: str, **options: Any) -> int:
    """Prompt tokens that a request finds; it stays long enough to be written behind."""
    sim.add(request(name, PROMPT, 6, **options))
    sim.run()
    sim.check_answers(name)
    return [event.cached_tokens for event in sim.events if event.request_id == name][-1]


def findable(sim: Simulation) -> set[bytes]:
    cache = sim.scheduler.cache
    return {name for pool in (cache.pool, cache.host) for name in pool.names if name is not None}


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("key", ["salt", "adapter"])
def test_only_equal_scopes_share(key: str, tier: str) -> None:
    sim = Simulation(num_host_blocks=20, adapters=ADAPTERS)
    found = []
    for number, value in enumerate(["", "a", "b", "a", "", "b"]):
        found.append(cached(sim, str(number), **{key: value}))
        if tier == "host":
            sim.scheduler.cache.pool.reset()
    assert found == [0, 0, 0, 16, 16, 16]
    assert (sim.scheduler.counters.host_prefix_hits == 48) == (tier == "host")


def test_a_salt_is_not_an_adapter() -> None:
    sim = Simulation(adapters=ADAPTERS)
    assert cached(sim, "salt", salt="x") == 0
    assert cached(sim, "adapter", adapter="x") == 0
    assert cached(sim, "both", salt="x", adapter="x") == 0


def test_scopes_cannot_be_glued_together_otherwise() -> None:
    sim = Simulation(adapters=ADAPTERS)
    assert cached(sim, "one", salt="xy", adapter="") == 0
    assert cached(sim, "two", salt="y", adapter="x") == 0
    assert cached(sim, "three", salt="", adapter="xy") == 0


def test_names_depend_on_the_revision_and_on_nothing_of_the_process() -> None:
    one, same, other = (Simulation(revision=revision) for revision in ("v1", "v1", "v2"))
    for sim in (one, same, other):
        cached(sim, "r")
    assert len(findable(one)) == 5 and findable(one) == findable(same)
    assert findable(one).isdisjoint(findable(other))


def test_without_prefix_caching_not_even_equal_requests_share() -> None:
    sim = Simulation(num_host_blocks=20, enable_prefix_caching=False)
    assert [cached(sim, "r") for _ in range(2)] == [0, 0]
    assert sim.scheduler.counters.host_prefix_hits == 0


def test_a_reset_forgets_both_tiers() -> None:
    sim = Simulation(num_host_blocks=20)
    cached(sim, "before")
    assert sim.scheduler.cache.host.cached
    sim.scheduler.reset_prefix_cache()
    check(sim.scheduler)
    assert findable(sim) == set()
    cache = sim.scheduler.cache
    assert cache.pool.cached == cache.host.cached == 0
    assert cache.host.room == 20
    assert cached(sim, "after") == 0
    assert cached(sim, "later") == 16


def test_a_reset_leaves_what_was_to_be_written_behind_unwritten() -> None:
    sim = Simulation(num_host_blocks=20, write_behind_blocks=1)
    sim.add(request("r", PROMPT, 9))
    sim.step()
    sim.step()
    sim.scheduler.reset_prefix_cache()
    plan = sim.plan()
    assert plan is not None and plan.store == []
    sim.receive()
    sim.run()
    sim.check_answers()


def test_those_who_run_keep_what_they_hold() -> None:
    sim = Simulation()
    sim.add(request("r", PROMPT, 9))
    sim.step()
    table = sim.running[0].table[:]
    sim.scheduler.reset_prefix_cache()
    check(sim.scheduler)
    assert sim.running[0].table == table
    sim.run()
    sim.check_answers()
    sim.check_empty()


@pytest.mark.parametrize("behind", [0, 8])
@pytest.mark.parametrize("options", [{}, {"n": 3, "temperature": 1.0}, {"beam_width": 2}])
def test_those_who_are_swapped_come_back_after_a_reset(
    options: dict[str, Any], behind: int
) -> None:
    sim = Simulation(num_host_blocks=20, preemption_mode="swap", write_behind_blocks=behind)
    sim.add(request("r", PROMPT, 9, **options))
    for _ in range(3):
        sim.step()
    computed = sim.scheduler.counters.computed
    assert sim.preempt("r").outcome == "swap"
    sim.scheduler.reset_prefix_cache()
    check(sim.scheduler)
    assert findable(sim) == set()
    plan = sim.plan()
    assert plan is not None and plan.add[0].computed == 20 and plan.swap_in
    sim.receive()
    assert sim.scheduler.counters.computed - computed <= 3  # nothing is computed again
    sim.check_published()
    sim.run()
    sim.check_answers()
    sim.check_empty()


def test_a_reset_while_blocks_are_being_brought_back_harms_nobody() -> None:
    sim = Simulation(num_host_blocks=20)
    cached(sim, "before")
    sim.scheduler.cache.pool.reset()
    sim.add(request("r", PROMPT, 9))
    plan = sim.plan()
    assert plan is not None and len(plan.swap_in) == 4
    sim.scheduler.reset_prefix_cache()
    check(sim.scheduler)
    sim.receive()
    sim.run()
    sim.check_answers()
    sim.check_empty()


def receive_scored(sim: Simulation) -> list[TokenEvent]:
    """Takes a result in to which an entry for each scored prompt token is added: its own number."""
    plan, result = sim.plans[-1], decode_result(sim.flights.popleft())
    (row,) = {work.row for work in plan.work}
    tokens = sim.workers[0]._mirror.rows[row].tokens
    last = len(PROMPT) - 1
    scores = {
        index: [
            Logprob(tokens[position + 1], -1.0, 1)
            for position in range(work.start, min(work.start + work.count, last))
        ]
        for index, work in enumerate(plan.work)
        if sim.workers[0]._mirror.rows[row].sampling.prompt_logprobs is not None
        and work.start < last
    }
    sim.flights.append(encode(type(result)(result.step, result.tokens, prompt_logprobs=scores)))
    return sim.receive()


@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_scored_prompt_reads_no_hits_of_either_tier_but_publishes(tier: str) -> None:
    sim = Simulation(num_host_blocks=20)
    assert cached(sim, "before") == 0
    if tier == "host":
        sim.scheduler.cache.pool.reset()
    sim.add(request("scored", PROMPT, 3, prompt_logprobs=1))
    plan = sim.plan()
    assert plan is not None and plan.swap_in == [] and plan.add[0].computed == 0
    (event,) = receive_scored(sim)
    assert event.cached_tokens == 0 and event.prompt_logprobs is not None
    assert [each and each.token for each in event.prompt_logprobs] == [None, *PROMPT[1:]]
    sim.run()
    sim.check_answers()
    sim.scheduler.cache.host.reset()
    assert cached(sim, "after") == 16  # the device has it, from before or from now


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_scored_prompt_is_scored_whole_and_once_however_it_is_preempted(
    steps: int, mode: str
) -> None:
    """Halfway it starts again without hits; afterwards it comes back like any other."""
    sim = Simulation(num_host_blocks=20, preemption_mode=mode, max_num_batched_tokens=6)
    sim.add(request("scored", PROMPT, 6, prompt_logprobs=1))
    for _ in range(steps):
        sim.plan()
        receive_scored(sim)
    sim.preempt("scored")
    plan = sim.plan()
    assert plan is not None
    (born,) = plan.add
    assert (born.computed > 0) == (steps >= 3)
    assert (born.sampling.prompt_logprobs is None) == (steps >= 3)
    receive_scored(sim)
    while sim.scheduler.live_requests:
        sim.plan()
        receive_scored(sim)
    sim.check_answers()
    scored = [event.prompt_logprobs for event in sim.events if event.prompt_logprobs]
    assert len(scored) == 1
    assert [each and each.token for each in scored[0]] == [None, *PROMPT[1:]]
