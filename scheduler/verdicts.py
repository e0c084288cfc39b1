"""Why a request is not in a plan, said by the scheduler while it makes that plan.

Nothing is noted unless somebody asks (`Scheduler.judge`), so a server pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from octavo.scheduler.draft import Draft
from octavo.scheduler.group import Group
from octavo.scheduler.roster import Roster


class Cause(StrEnum):
    """What holds a request back. Nobody overtakes one that lacks something: those behind it stand
    `BEHIND`. The last three are of requests that run."""

    SEQUENCES = "sequences"
    TOKENS = "tokens"
    WATERMARK = "watermark"
    BLOCKS = "blocks"
    WHOLE = "whole"  # blocks for all that it may become, after it was preempted often
    ADAPTERS = "adapters"  # as many mix in a step as may
    SHARED = "shared"  # another computes its next block
    RESULT = "result"  # its last token is in a step in flight
    PREEMPTING = "preempting"  # nobody is let in by a step that preempted
    BEHIND = "behind"
    PROMPT = "prompt"  # the step has no tokens left for the rest of its prompt
    SIBLING = "sibling"  # another of its samples first computes what both share
    LAST = "last"  # all of it is computed, or being computed


@dataclass(frozen=True, slots=True)
class Verdict:
    """`needed` of what the cause speaks of, and how much `there` is: free blocks, rows, or a step's
    tokens. `kept` blocks must stay free besides; `whom` stands in the way. `swapped`: its content
    lies on the host meanwhile."""

    cause: Cause
    needed: int = 0
    there: int = 0
    kept: int = 0
    whom: str = ""
    swapped: bool = False


class Judge:
    """Of the newest plan: `verdicts` on those left out, and tokens `computed` of the others, by
    request."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.computed: dict[str, int] = {}

    def begin(self) -> None:
        """A plan is about to be made."""
        self.verdicts, self.computed = {}, {}

    def hold(
        self,
        group: Group,
        cause: Cause,
        needed: int = 0,
        there: int = 0,
        kept: int = 0,
        whom: str = "",
    ) -> None:
        """This request alone is left out. What was said of it first stands."""
        swapped = any(seq.host_table for seq in group.sequences)
        self.verdicts.setdefault(group.id, Verdict(cause, needed, there, kept, whom, swapped))

    def stop(
        self,
        waiting: Iterable[Group],
        group: Group,
        cause: Cause,
        needed: int,
        there: int,
        kept: int = 0,
    ) -> None:
        """This request is left out, and with it all that wait behind it."""
        self.hold(group, cause, needed, there, kept)
        behind = False
        for other in waiting:
            if behind:
                self.hold(other, Cause.BEHIND, whom=group.id)
            behind = behind or other is group

    def full(self, waiting: Iterable[Group], draft: Draft, rows: int, most: int) -> None:
        """The step has no more tokens, or no more rows, for the first that is not in it."""
        group = next(group for group in waiting if not group.running and not self._held(group))
        if draft.left <= 0:
            self.stop(waiting, group, Cause.TOKENS, 1, draft.budget)
        else:
            self.stop(waiting, group, Cause.SEQUENCES, group.rows(), max(0, most - rows))

    def end(self, draft: Draft, roster: Roster, preempted: bool) -> None:
        """The plan is made; one that `preempted` lets nobody in."""
        for group in roster.waiting if preempted else ():
            self.hold(group, Cause.PREEMPTING)
        for row, work in zip(draft.rows, draft.work, strict=True):
            seq = roster.seated[row if row >= 0 else ~row]
            assert seq is not None
            name = seq.group.id
            self.computed[name] = self.computed.get(name, 0) + work.count
        for group in roster.running:
            if group.id in self.computed:
                self.verdicts.pop(group.id, None)
            else:
                self.hold(group, Cause.LAST)

    def _held(self, group: Group) -> bool:
        return group.id in self.verdicts
