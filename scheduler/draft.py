"""A plan while it is being made, and what is remembered of it while it is under way."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.moves import Moves
from octavo.scheduler.plan import Add, Append, Fork, Grow, Replace, StepPlan, Work
from octavo.scheduler.sampling import mix_seed
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

    def extend(self, seq: Sequence, cache: KvCache) -> bool:
        """A block more for a sequence in the lane, and its token in it. False, and nothing, where
        it lacks something else, or there is no block."""
        lane, row = seq.lane, seq.row
        if lane is None or not (cache.pool.free or seq.reserved):
            return False
        assert row is not None
        start = lane.granted[row]
        if start != len(seq.table) * cache.block_size or start >= seq.limit - 1:
            return False
        self.grow.append(Grow(row, [cache.append_block(seq)]))
        lane.granted[row] = start + 1
        lane.extend(seq)
        self.work.append(Work(row, start, 1, True))
        self.rows.append(row)
        self.tokens += 1
        return True

    def open_block(self, seq: Sequence, cache: KvCache) -> None:
        """Has the block of a sequence's next token writable."""
        assert seq.row is not None
        length = len(seq.table)
        place = cache.open_block(seq)
        if place is None:
            return
        if place == length:
            self.grow.append(Grow(seq.row, [seq.table[place]]))
        else:
            self.replace.append(Replace(seq.row, place, seq.table[place]))


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


def birth(seq: Sequence) -> Add:
    """Tells the workers of a sequence on the row that it was given."""
    assert seq.row is not None
    sampling = seq.group.request.sampling
    if sampling.prompt_logprobs is not None and not seq.wants_prompt_logprobs():
        sampling = sampling.replace(prompt_logprobs=None)  # they were delivered before
    if seq.index and sampling.beam_width is None:
        sampling = sampling.replace(seed=mix_seed(sampling.seed or 0, seq.index))
    return Add(
        row=seq.row,
        tokens=seq.tokens.tolist(),
        prompt_len=seq.prompt_len,
        blocks=seq.table.tolist(),
        computed=seq.granted,
        sampling=sampling,
        adapter=seq.group.request.adapter,
    )
