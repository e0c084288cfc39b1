"""Has a real scheduler do all that a journal says again, and compares plan by plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from octavo.cluster.journal.reader import Segment, segments
from octavo.cluster.journal.records import (
    Abort,
    Arrival,
    Asked,
    Folding,
    Planned,
    Record,
    Reset,
    Result,
    Resync,
    outline,
)
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.preemption import Decision
from octavo.scheduler.request import TokenEvent
from octavo.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class Turn:
    """One record, done again: the plan that was made if it asked for one, what came of it, and how
    it differs from what was recorded, where it does."""

    record: Record
    step: int  # the number of the plan, or that of the next
    plan: StepPlan | None = None
    events: Iterable[TokenEvent] = ()
    decisions: list[Decision] = field(default_factory=list)
    difference: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one file: plans that were made again, equal ones, and the first that was not."""

    path: Path
    plans: int
    requests: int
    same_code: bool
    difference: str | None


def replay(path: Path) -> Iterator[Outcome]:
    """File by file, oldest first. Raises `JournalError`."""
    for segment in segments(path):
        plans, difference = 0, None
        scheduler = segment.scheduler()
        requests = len(scheduler.live_requests)
        for turn in turns(segment, scheduler):
            requests += isinstance(turn.record, Arrival)
            difference = turn.difference
            if difference is not None:
                break
            plans += turn.plan is not None
        yield Outcome(segment.path, plans, requests, segment.same_code, difference)


def turns(segment: Segment, scheduler: Scheduler) -> Iterator[Turn]:
    """Ends with the first difference, as what follows was an answer to another plan."""
    folding = Folding()
    step = 0
    for record in segment.records:
        turn = Turn(record, step)
        try:
            _repeat(turn, scheduler, folding)
        except Exception as error:  # the journal may be of the very step that failed
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            turn.difference = f"step {turn.step}: the scheduler fails with {what}"
        turn.decisions = scheduler.take_decisions()
        scheduler.take_begun()
        scheduler.take_ended()
        yield turn
        if turn.difference is not None:
            return
        step = turn.step + (turn.plan is not None)


def _repeat(turn: Turn, scheduler: Scheduler, folding: Folding) -> None:
    match turn.record:
        case Arrival(request, now):
            scheduler.add(request, now)
        case Abort(request_id, index):
            scheduler.abort(request_id, index)
        case Reset():
            scheduler.reset_prefix_cache()
        case Asked():
            _ = scheduler.awaits_result
        case Result(now, result):
            turn.events = scheduler.update(result, now)
        case Planned():
            recorded = folding.unfold(turn.record)
            turn.plan = scheduler.schedule(turn.record.now)
            _compare(turn, recorded)
        case Resync(plan):
            folding.forget()
            turn.plan = scheduler.resync()
            _compare(turn, plan)


def _compare(turn: Turn, recorded: StepPlan | None) -> None:
    made = None if turn.plan is None else outline(turn.plan)
    if made is not None:
        turn.step = made.step
    elif recorded is not None:
        turn.step = recorded.step
    if made != recorded:
        turn.difference = f"step {turn.step} differs: {describe_difference(recorded, made)}"


def describe_difference(recorded: StepPlan | None, made: StepPlan | None) -> str:
    """The first thing in which two plans differ, in words."""
    if recorded is None or made is None:
        return (
            "no plan was made, and now there is one"
            if recorded is None
            else "a plan was made, and now there is none"
        )
    for name in StepPlan.__struct_fields__:
        before, now = getattr(recorded, name), getattr(made, name)
        if before == now:
            continue
        if not isinstance(before, list):
            return f"`{name}` was {before}, and is {now}"
        place = next(
            (at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]),
            min(len(before), len(now)),
        )
        was, is_now = (
            repr(each[place]) if place < len(each) else "nothing" for each in (before, now)
        )
        return f"entry {place} of `{name}` was {was}, and is {is_now}"
    return "nothing"  # of two that are equal
