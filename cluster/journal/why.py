"""Tells from a journal, step by step, why a request did not run, and when it did.

The scheduler itself says so (`octavo.scheduler.verdicts`) while it makes the recorded plans again.
Steps that are alike are one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.reader import segments
from octavo.cluster.journal.records import Abort, Arrival, Planned, Result
from octavo.cluster.journal.replay import Turn, turns
from octavo.scheduler.preemption import Decision
from octavo.scheduler.request import Finish
from octavo.scheduler.verdicts import Cause, Judge, Verdict

NEAREST = 3  # ids that are named where one is not found
RAN = "ran"
OUTCOMES = {
    "swap": "its blocks were copied to the host",
    "recompute": "what it had computed is to be found or computed again",
    "no host room": "the host had no room for its blocks, so they are to be computed again",
}
ENDS = {
    Finish.STOP: "it ended with a stop token",
    Finish.LENGTH: "it ended at its full length",
    Finish.ABORT: "it was aborted",
    Finish.ERROR: "it ended with an error",
}


def why(request_id: str, path: Path) -> list[str]:
    """Lines about the request, or about each whose id begins so: a client's id becomes several
    where it sent several prompts. Raises `JournalError`."""
    found: dict[str, _Story] = {}
    known: list[str] = []
    lines: list[str] = []
    for segment in segments(path):
        scheduler = segment.scheduler()
        judge = scheduler.judge = Judge()
        for name in scheduler.live_requests:
            known.append(name)
            if name.startswith(request_id) and name not in found:
                found[name] = _Story(name, segment.start.now)
                found[name].say("it was there before this journal begins")
        for turn in turns(segment, scheduler):
            record = turn.record
            if isinstance(record, Arrival):
                known.append(record.request.id)
                if record.request.id.startswith(request_id):
                    story = found[record.request.id] = _Story(record.request.id, record.now)
                    story.arrive(record, turn.step)
            for story in found.values():
                if not story.ended:
                    story.take(turn, judge)
                    story.ended = story.name not in scheduler.roster.live
            if turn.difference is not None:
                lines.append(f"The rest cannot be told, as {turn.difference}.")
    if not found:
        recent = ", ".join(dict.fromkeys(reversed(known[-NEAREST:]))) or "none at all"
        raise JournalError(f"no request {request_id!r} is in {path}; the last ones are: {recent}")
    return [line for story in found.values() for line in story.lines()] + lines


@dataclass(slots=True)
class _Run:
    """Steps in which the same was so."""

    kind: str
    first: int
    last: int
    began: float
    verdict: Verdict | None
    behind: Verdict | None
    tokens: int = 0
    needed: tuple[int, int] = (0, 0)
    there: tuple[int, int] = (0, 0)


class _Story:
    def __init__(self, name: str, began: float) -> None:
        self.ended = False
        self.name = name
        self._began = began
        self._now = began
        self._step: int | None = None  # where the file says of none yet
        self._lines = [f"request {name}"]
        self._run: _Run | None = None

    def arrive(self, record: Arrival, step: int) -> None:
        request, self._step = record.request, step
        text = f"it arrived with {len(request.prompt)} prompt tokens"
        if request.sampling.width > 1:
            text += f", for {request.sampling.width} sequences"
        if request.resumed:
            text += ", and with tokens that another engine gave it"
        if request.priority:
            text += f", at priority {request.priority}"
        self.say(text)

    def say(self, text: str) -> None:
        """Something that happened between two steps, or in one."""
        self._close()
        place = "" if self._step is None else f"before step {self._step}: "
        self._lines.append(f"  {self._at(self._now)}  {place}{text}")

    def take(self, turn: Turn, judge: Judge) -> None:
        record, self._step = turn.record, turn.step
        if isinstance(record, (Planned, Result)):
            self._now = record.now
        for decision in turn.decisions:
            if decision.request_id == self.name:
                self.say(_preempted(decision))
        if isinstance(record, Abort) and record.request_id == self.name:
            self._abort(record)
        elif isinstance(record, Planned):
            self._plan(turn, judge)
        for event in turn.events:
            if event.request_id == self.name and event.finish is not None:
                self._end(ENDS[event.finish], event.index)

    def lines(self) -> Iterator[str]:
        self._close()
        yield from self._lines
        if not self.ended:
            yield "  the journal ends while it is live"

    def _abort(self, record: Abort) -> None:
        if record.index is None:
            self._end("it was aborted", 0)
        else:
            self.say(f"its sample {record.index} was aborted")

    def _end(self, text: str, index: int) -> None:
        """A sample's end is told; who has several is not over with the first."""
        self.say(text if not index else f"sample {index}: {text}")

    def _plan(self, turn: Turn, judge: Judge) -> None:
        tokens = judge.computed.get(self.name, 0) if turn.plan is not None else 0
        verdict = None if tokens else judge.verdicts.get(self.name)
        step = turn.step if turn.plan is not None else max(0, turn.step - 1)
        if not tokens and verdict is None:
            return
        if turn.plan is None and verdict is not None and verdict.cause is Cause.LAST:
            return  # there was no step for it to be in
        behind = judge.verdicts.get(verdict.whom) if verdict is not None else None
        kind = RAN if verdict is None else f"{verdict.cause} {verdict.whom} {verdict.swapped}"
        kind += f" {behind.cause}" if behind is not None else ""
        run = self._run
        if run is None or run.kind != kind:
            self._close()
            run = self._run = _Run(kind, step, step, self._now, verdict, behind)
            if shown := behind or verdict:
                run.needed = (shown.needed, shown.needed)
                run.there = (shown.there, shown.there)
        run.last = step
        run.tokens += tokens
        if shown := behind or verdict:
            run.needed = min(run.needed[0], shown.needed), max(run.needed[1], shown.needed)
            run.there = min(run.there[0], shown.there), max(run.there[1], shown.there)

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        steps = f"step {run.first}" if run.first == run.last else f"steps {run.first}-{run.last}"
        self._lines.append(f"  {self._at(run.began)}  {steps}: {_sentence(run)}")

    def _at(self, now: float) -> str:
        return f"+{now - self._began:.3f} s"


def _sentence(run: _Run) -> str:
    if run.verdict is None:
        return f"it ran: {run.tokens} token{'s' * (run.tokens != 1)} computed"
    cause = run.verdict.cause
    if cause is Cause.BEHIND:
        text = f"it waited behind {run.verdict.whom}"
        if run.behind is not None:
            text += f", which waited {_reason(run.behind, run)}"
    elif cause in (Cause.PROMPT, Cause.SIBLING, Cause.LAST):
        text = f"it computed nothing, {_reason(run.verdict, run)}"
    else:
        text = f"it waited {_reason(run.verdict, run)}"
    return text + (" (swapped out: its blocks were on the host)" if run.verdict.swapped else "")


def _reason(verdict: Verdict, run: _Run) -> str:
    needed, there = _span(run.needed), _span(run.there)
    match verdict.cause:
        case Cause.SEQUENCES:
            return f"for rows: max_num_seqs are taken ({there} free, {needed} needed)"
        case Cause.TOKENS | Cause.PROMPT:
            return (
                f"as others took all tokens of the step (max_num_batched_tokens is {verdict.there})"
            )
        case Cause.WATERMARK:
            return f"below the watermark: {there} blocks were free, and {needed} must be again"
        case Cause.BLOCKS | Cause.WHOLE:
            whole = " for its whole length, as it was preempted before"
            kept = f", {verdict.kept} of them kept (watermark)" if verdict.kept else ""
            extra = whole if verdict.cause is Cause.WHOLE else ""
            return f"for blocks{extra}: {needed} needed, {there} free{kept}"
        case Cause.ADAPTERS:
            return f"as its adapter would be one more than may be at once (max_loras is {there})"
        case Cause.SHARED:
            return "for a block that another request was computing, to share it"
        case Cause.RESULT:
            return "for the result of a step in flight, with its last token"
        case Cause.PREEMPTING:
            return "as the step preempted a request, and such a step lets nobody in"
        case Cause.SIBLING:
            return "as another of its samples first computes what they share"
        case Cause.LAST:
            return "as all that is known of it is computed or in flight"
        case Cause.BEHIND:
            return f"behind {verdict.whom}"


def _span(both: tuple[int, int]) -> str:
    return str(both[0]) if both[0] == both[1] else f"{both[0]} to {both[1]}"


def _preempted(decision: Decision) -> str:
    outcome = OUTCOMES[decision.outcome]
    if decision.whom in ("", decision.request_id):
        return f"it was preempted, as it needed blocks and no other had any to give; {outcome}"
    return f"it was preempted for {decision.whom}, which needed blocks; {outcome}"
