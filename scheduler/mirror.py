"""The worker's half of the wire: rows and block tables, kept equal to the scheduler's by deltas.

Knows no tensors and no model. Every rank holds one and applies every plan in order; a gap in the
numbering raises before anything is touched, so that `Scheduler.resync` can mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from octavo.scheduler.errors import OutOfStep
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.sampling import SamplingParams


@dataclass(slots=True)
class Row:
    """One live token stream as a worker sees it. `tokens[:computed]` are in the cache."""

    tokens: list[int]
    prompt_len: int
    table: list[int]
    computed: int
    sampling: SamplingParams
    adapter: str = ""

    def fork(self, seed: int) -> Row:
        """A row of its own that is so far the same, but will draw with another seed."""
        sampling = msgspec.structs.replace(self.sampling, seed=seed)
        tokens, table = self.tokens.copy(), self.table.copy()
        return Row(tokens, self.prompt_len, table, self.computed, sampling, self.adapter)


class Mirror:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.rows: dict[int, Row] = {}
        self._expected = 0

    def apply(self, plan: StepPlan) -> None:
        """Makes the changes of `plan`; its work is then ready to compute. Raises `OutOfStep`."""
        if plan.reset:
            self.rows.clear()
        elif plan.step != self._expected:
            raise OutOfStep(self._expected, plan.step)
        self._expected = plan.step + 1
        rows = self.rows
        for number in plan.drop:
            del rows[number]
        for add in plan.add:
            assert add.row not in rows, f"row {add.row} is born twice"
            tokens, table = list(add.tokens), list(add.blocks)
            rows[add.row] = Row(
                tokens, add.prompt_len, table, add.computed, add.sampling, add.adapter
            )
        for fork in plan.fork:
            assert fork.row not in rows, f"row {fork.row} is born twice"
            rows[fork.row] = rows[fork.parent].fork(fork.seed)
        for append in plan.append:
            rows[append.row].tokens.append(append.token)
        for grow in plan.grow:
            rows[grow.row].table.extend(grow.blocks)
        for replace in plan.replace:
            rows[replace.row].table[replace.place] = replace.block
        for work in plan.work:
            row = rows[work.row]
            end = work.start + work.count
            if work.count == 0:
                row.computed = work.start  # what its parent computes right before
            assert work.start == row.computed, f"row {work.row} computes out of order"
            assert end <= len(row.table) * self.block_size, f"row {work.row} outgrows its table"
            assert end <= len(row.tokens), f"row {work.row} lacks the tokens to compute"

    def advance(self, plan: StepPlan, sampled: Sequence[int]) -> None:
        """After computing: moves each row on and appends what was sampled, in plan order; nothing
        was for rows with a beam width."""
        tokens = iter(sampled)
        for work in plan.work:
            row = self.rows[work.row]
            row.computed += work.count
            if work.sample and row.sampling.beam_width is None:
                row.tokens.append(next(tokens))
