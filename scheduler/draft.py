"""A plan while it is being made, and what is remembered of it while it is under way."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from octavo.scheduler.moves import Moves
from octavo.scheduler.plan import Add, Append, Fork, Grow, Replace, StepPlan, Work
from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)
class Draft:
    """What is granted out of a budget of tokens, and the changes so far. `rows` are those of each
    Work, as ~row where its result cannot be taken in the lane."""

    budget: int
    tokens: int = 0  # granted so far
    chunked: int = 0  # of them, those of Works that have several
    work: list[Work] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("q"))
    add: list[Add] = field(default_factory=list)
    grow: list[Grow] = field(default_factory=list)
    replace: list[Replace] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.budget - self.tokens


@dataclass(slots=True, frozen=True)
class Flight:
    """A plan that went out and whose result is not back. `left` are the sequences that have left
    their row since, by row: the table that it wrote for them exists no more."""

    step: int
    draft: Draft
    moves: Moves
    left: dict[int, Sequence] = field(default_factory=dict)


@dataclass(slots=True)
class RowChanges:
    """Rows that ended, forked or were continued since the last plan."""

    drop: list[int] = field(default_factory=list)
    fork: dict[int, Fork] = field(default_factory=dict)  # by the new row
    append: dict[int, int] = field(default_factory=dict)  # the token, by row

    def end(self, row: int) -> None:
        """A row that no plan has told the workers of needs no telling."""
        self.append.pop(row, None)
        if self.fork.pop(row, None) is None:
            self.drop.append(row)

    def plan(self, step: int, draft: Draft, moves: Moves, reset: bool) -> StepPlan:
        return StepPlan(
            step,
            draft.work,
            self.drop,
            draft.add,
            draft.grow,
            reset,
            list(self.fork.values()),
            [Append(row, token) for row, token in self.append.items()],
            draft.replace,
            moves.swap_out,
            moves.swap_in,
            moves.copy,
            moves.store,
        )
