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
    return of.update(StepResult(plan.step, [token] * sum(w.sample for w in plan.work)), 0.0)


def test_a_row_is_in_it_between_the_ends_of_its_blocks() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3], 20), 0.0)
    inside = []
    for _ in range(9):
        step(of)
        inside.append(only(of).lane is not None)
    # Three tokens are computed first; a full block leaves nothing to be granted without another.
    assert inside == [True, False, True, True, True, False, True, True, True]


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
    events = of.update(StepResult(plan.step, [7, 7], errors={0: "not a number"}), 0.0)
    assert [event.finish for event in events] == [Finish.ERROR, None]
    assert [event.request_id for event in step(of)] == ["two"]


def test_rows_that_bring_more_than_a_token_stay_out() -> None:
    of = scheduler()
    of.add(request("r", [1, 2, 3, 4, 5], 20, logprobs=0), 0.0)
    step(of)
    assert only(of).lane is None
