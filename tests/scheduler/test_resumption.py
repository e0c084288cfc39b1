"""Requests that another engine had begun: they go on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.scheduler.errors import InvalidRequest, QueueFull
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import mix_seed
from tests.scheduler.simulation import Simulation, expected, request

LENGTH = 10
PROMPT = list(range(14))


def resumed(item: Request, *lengths: int | None) -> Request:
    """The request after so many tokens of each sample, None for one that has ended."""
    given = [
        None if length is None else expected(item, index)[:length]
        for index, length in enumerate(lengths)
    ]
    return msgspec.structs.replace(item, resumed=given)


def asking(n: int = 1, **sampling: Any) -> Request:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 11, **sampling}
    return request("r", PROMPT, LENGTH, n=n, **params)


def told(sim: Simulation) -> list[TokenEvent]:
    sim.run()
    sim.check_answers()
    sim.check_empty()
    return sim.events


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("given", range(1, LENGTH))
def test_a_sample_goes_on_where_it_was(given: int, temperature: float) -> None:
    sim = Simulation()
    sim.add(resumed(asking(temperature=temperature), given))
    events = told(sim)
    assert len(events) == LENGTH - given
    assert [event.finish for event in events if event.finish] == [Finish.LENGTH]


@pytest.mark.parametrize(
    "lengths",
    [(3, 3, 3), (3, 4, 3), (1, 9, 5), (None, 4, 4), (4, None, 2), (None, None, 9), (5, 0, 1)],
)
@pytest.mark.parametrize("blocks", [64, 17])
def test_each_sample_of_a_request_goes_on_where_it_was(
    lengths: tuple[int | None, ...], blocks: int
) -> None:
    sim = Simulation(blocks, max_num_batched_tokens=9)
    item = resumed(asking(3), *lengths)
    sim.add(item)
    live = item.live_samples
    assert len(told(sim)) == sum(LENGTH - (lengths[index] or 0) for index in live)
    assert sim.finished == {"r": Finish.LENGTH}


@pytest.mark.parametrize("depth", [1, 2])
def test_an_end_token_ends_it_in_its_place(depth: int) -> None:
    item = asking(2)
    stop = expected(item, 1)[6]
    item = asking(2, stop_token_ids=(stop,))
    sim = Simulation(depth=depth)
    sim.add(resumed(item, 4, 4))
    ends = {event.index: event for event in told(sim) if event.finish}
    assert (ends[1].finish, ends[1].stop_token) == (Finish.STOP, stop)


def test_workers_are_told_what_is_prompt_and_what_was_drawn_with_which_seed() -> None:
    sim = Simulation()
    sim.add(resumed(asking(3, prompt_logprobs=2), 3, None, 5))
    plan = sim.plan()
    assert plan is not None and plan.fork == []
    first, third = plan.add
    assert [first.prompt_len, third.prompt_len] == [14, 14]
    assert [len(first.tokens), len(third.tokens)] == [17, 19]
    assert [first.sampling.seed, third.sampling.seed] == [11, mix_seed(11, 2)]
    assert first.sampling.prompt_logprobs is third.sampling.prompt_logprobs is None, "told before"


def test_what_samples_have_in_common_is_computed_and_stored_once() -> None:
    sim = Simulation()
    sim.add(resumed(asking(3), 4, 4, 4))
    sim.step()
    tables = [seq.table for seq in sim.running]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    sim.run()
    assert sim.scheduler.counters.computed == 12 + 3 * (14 + LENGTH - 1 - 12)


def test_what_is_found_is_used_but_is_no_hit_of_the_clients() -> None:
    sim = Simulation()
    sim.add(request("before", PROMPT, 1))
    sim.run()
    counters = sim.scheduler.counters
    computed, queries = counters.computed, counters.prefix_queries
    sim.events.clear()
    sim.add(resumed(asking(), 3))
    assert all(event.cached_tokens == 0 for event in told(sim))
    assert counters.computed - computed == 14 + LENGTH - 1 - 12
    assert counters.prefix_queries == queries and counters.prompt_tokens == 14
    assert counters.resumed == 1


def test_it_comes_before_those_that_are_new_and_is_never_too_many() -> None:
    sim = Simulation(max_num_seqs=1, max_num_queued_reqs=1)
    sim.add(request("new", [50], 3))
    with pytest.raises(QueueFull):
        sim.add(request("too many", [51], 3))
    sim.add(resumed(asking(), 4))
    told(sim)
    assert list(sim.finished) == ["r", "new"]


@pytest.mark.parametrize("index", [None, 0, 2])
def test_it_can_be_aborted_before_and_after_it_is_admitted(index: int | None) -> None:
    for steps in (0, 1, 3):
        sim = Simulation(max_num_batched_tokens=6)
        sim.add(resumed(asking(3), 4, None, 4))
        for _ in range(steps):
            sim.step()
        assert sim.scheduler.abort("r", index)
        sim.run()
        sim.check_empty()
        other = {0: 2, 2: 0}.get(-1 if index is None else index)
        if other is not None:
            assert sim.samples["r"][other] == expected(sim.requests["r"], other)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_it_can_be_preempted_and_lost_again(mode: str) -> None:
    sim = Simulation(num_host_blocks=40, preemption_mode=mode)
    sim.add(resumed(asking(3), 2, 2, None))
    sim.step()
    sim.preempt("r")
    sim.step()
    sim.lose(executed=True)
    sim.step()
    second = Simulation()
    second.take_over(sim)
    second.step()
    told(second)


@pytest.mark.parametrize(
    "given",
    [
        [[1], [2]],  # two samples, one was asked for
        [None],  # it has ended
        [[1] * LENGTH],  # it has come to its length
        [[1, 60, 2]],  # it has come to its end token
    ],
)
def test_what_no_live_request_can_have_given_is_refused(given: list[list[int] | None]) -> None:
    sim = Simulation()
    item = asking(stop_token_ids=(60,))
    with pytest.raises(InvalidRequest, match="resumed has samples of") as caught:
        sim.add(msgspec.structs.replace(item, resumed=given))
    assert caught.value.param == "resumed"
    assert sim.scheduler.live_requests == []


def test_beams_and_scored_prompts_give_nothing_to_go_on_from() -> None:
    sim = Simulation()
    for item in (request("b", [1], 4, beam_width=2), request("s", [1], 0)):
        with pytest.raises(InvalidRequest, match="resumed"):
            sim.add(msgspec.structs.replace(item, resumed=[[]]))


def test_who_runs_for_the_first_time_is_told_once() -> None:
    sim = Simulation(max_num_seqs=2)
    sim.add(request("a", [1], 3), resumed(asking(), 2), request("c", [3], 3))
    assert sim.scheduler.take_begun() == []
    sim.plan()
    assert sim.scheduler.take_begun() == ["r", "a"]
    sim.receive()
    sim.preempt("a")
    sim.run()
    assert sim.scheduler.take_begun() == ["c"]
