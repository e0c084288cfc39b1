"""How much of what a replica's sequences read lies in blocks that several of them hold.

A follower of plans, as the workers are: it keeps the tables of rows, and of each block how many
rows have it in theirs.
"""

from __future__ import annotations

from octavo.scheduler.plan import StepPlan


class Sharing:
    """Of one replica, whose blocks hold `block_size` tokens each."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._tables: dict[int, list[int]] = {}
        self._holders: dict[int, int] = {}
        self._repeated = 0  # blocks, once for each holder but the first

    def follow(self, plan: StepPlan) -> int:
        """Makes the plan's changes. Tokens that a step reads which has all rows in it, and that
        another row of it reads too: all readings of each but the first."""
        tables = self._tables
        for row in plan.drop:
            for block in tables.pop(row):
                self._release(block)
        for add in plan.add:
            self._extend(tables.setdefault(add.row, []), add.blocks)
        for fork in plan.fork:
            self._extend(tables.setdefault(fork.row, []), tables[fork.parent])
        for grow in plan.grow:
            self._extend(tables[grow.row], grow.blocks)
        for replace in plan.replace:
            table = tables[replace.row]
            self._release(table[replace.place])
            table[replace.place] = replace.block
            self._hold(replace.block)
        return self._repeated * self._block_size

    def _extend(self, table: list[int], blocks: list[int]) -> None:
        table += blocks
        for block in blocks:
            self._hold(block)

    def _hold(self, block: int) -> None:
        before = self._holders.get(block, 0)
        self._holders[block] = before + 1
        self._repeated += before > 0

    def _release(self, block: int) -> None:
        left = self._holders.pop(block) - 1
        if left:
            self._holders[block] = left
            self._repeated -= 1
