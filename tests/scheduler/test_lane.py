"""Rows that only decode: when they are in the lane, and that nobody can tell whether they are."""

from __future__ import annotations

import pytest

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.plan import StepResult
from octavo.scheduler.request import Finish, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from tests.scheduler.simulation import request

BLOCK = 4


def scheduler() -> Scheduler:
    config = SchedulerConfig(max_model_len=64, block_size=BLOCK, max_num_seqs=4)
    return Scheduler(config, Capacity(40, BLOCK))


def only(of: Scheduler) -> Sequence:
    (group,) = of.groups
    (seq,) = group.sequences
    return seq


def step(of: Scheduler, token: int = 7) -> list[TokenEvent]:
    plan = of.schedule(0.0)
    assert plan is not None
    return list(of.update(StepResult(plan.step, [token] * sum(w.sample for w in plan.work)), 0.0))


def test_a_row_is_in_it_from_its_prompt_to_its_last_step() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3], 10), 0.0)
    inside, published, tables = [], [], []
    while of.groups:
        seq = only(of)
        step(of)
        inside.append(seq.lane is not None)
        published.append(seq.published)
        tables.append(len(seq.table))
    # Three tokens are computed first; the last one is never computed.
    assert inside == [True] * 9 + [False]
    assert published[:-1] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert tables[:-1] == [1, 1, 2, 2, 2, 2, 3, 3, 3]


def test_blocks_that_fill_in_it_are_found_by_what_they_hold() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3], 10), 0.0)
    tokens = [step(of, token)[0].tokens[0] for token in range(20, 30)]
    known = [1, 2, 3, *tokens]
    of.add(request("again", known, 1), 0.0)
    assert step(of)[0].cached_tokens == 12
    other = [*known[:9], 99, *known[10:]]
    of.add(request("other", other, 1), 0.0)
    assert step(of)[0].cached_tokens == 8


def test_without_a_block_a_row_in_it_makes_room_as_any_other() -> None:
    config = SchedulerConfig(max_model_len=64, block_size=BLOCK, max_num_seqs=4)
    of = Scheduler(config, Capacity(17, BLOCK))
    for name in ("first", "second"):
        of.add(request(name, [1, 2, 3], 40, salt=name), 0.0)
    preemptions = []
    for _ in range(60):
        step(of)
        preemptions.append(of.counters.preemptions)
        if not of.groups[1:]:
            break
    assert preemptions[-1] > 0
    while of.groups:
        step(of)
    assert of.cache.pool.used == 0 and not of.roster.lane.stops


def test_whoever_looks_takes_it_out_and_sees_what_is_true() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3, 4, 5], 20), 0.0)
    for token in (10, 11):
        step(of, token)
    assert of.schedule(0.0) is not None
    seq = only(of)
    assert seq.lane is not None
    assert (seq.granted, seq.computed, seq.pending) == (7, 6, 1)
    assert seq.tokens.tolist() == [1, 2, 3, 4, 5, 10, 11]
    assert seq.lane is None and not of.roster.lane.stops


@pytest.mark.parametrize("looking", [False, True])
def test_looking_changes_nothing(looking: bool) -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3], 20, stop_token_ids=[30]), 0.0)
    events: list[TokenEvent] = []
    for token in range(20, 32):
        if of.groups:
            events += step(of, token)
        for group in of.groups:
            assert not looking or group.sequences[0].remaining() == 1
    assert [event.tokens[0] for event in events] == list(range(20, 31))
    assert events[-1].finish is Finish.STOP and events[-1].stop_token == 30
    assert of.cache.pool.used == 0 and not of.roster.lane.stops


def test_another_rows_stop_token_is_a_token() -> None:
    of = scheduler()
    of.add(request("one", [1, 2, 3, 4, 5], 20, stop_token_ids=[9]), 0.0)
    of.add(request("two", [1, 2, 3, 4, 5], 20, salt="other"), 0.0)
    step(of)
    events = step(of, 9)
    assert {event.request_id: event.finish for event in events} == {"one": Finish.STOP, "two": None}
    assert [event.tokens for event in step(of, 9)] == [[9]]


def test_an_error_ends_a_row_that_is_in_it() -> None:
    of = scheduler()
    for name in ("one", "two"):
        of.add(request(name, [1, 2, 3, 4, 5], 20, salt=name), 0.0)
    step(of)
    plan = of.schedule(0.0)
    assert plan is not None
    events = list(of.update(StepResult(plan.step, [7, 7], errors={0: "not a number"}), 0.0))
    assert [event.finish for event in events] == [Finish.ERROR, None]
    assert [event.request_id for event in step(of)] == ["two"]


def test_rows_that_bring_more_than_a_token_stay_out() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3, 4, 5], 20, logprobs=0), 0.0)
    step(of)
    assert only(of).lane is None
