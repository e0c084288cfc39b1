"""Rows that only decode: what changes in each step, in columns instead of object by object.

Most rows of most steps take one token more in a block that they have begun, and come to no end.
For them, granting and confirming is a little arithmetic on columns that fit a core's cache, where
the objects of thousands of rows do not: reading those is most of what a step would cost. At the
ends of its blocks a row is given another one, or has the content of one published, and stays.
Everything else - an end, a preemption, somebody who looks - takes the row out first, which writes
what the columns say into its `Sequence`, and goes the general way. A `Sequence` sees to that
itself.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.scheduler.sequence import Sequence


class Lane:
    """Entry r of each column speaks of row r. There is one entry more, of `nobody`, which is never
    in the lane.

    A row in the lane knows one token more than it was `granted`. It may be granted so many more as
    `grants` says, and so many results may come as `results` says, before it has to leave; both are
    0 of a row that is not in the lane. They are small numbers, which Python has ready.
    """

    def __init__(self, num_rows: int, block_size: int) -> None:
        self.nobody = num_rows
        self.granted = [0] * (num_rows + 1)
        self.grants = [0] * (num_rows + 1)
        self.results = [0] * (num_rows + 1)
        self.ids = [""] * (num_rows + 1)  # of the requests
        self.stops = Counter[int]()  # tokens that would end a row, and how many rows
        # Room for the tokens that come, a block for each row, filled from its end: where another
        # may come, there are `results` places before it.
        self.tokens = array("I", [0]) * (num_rows * block_size)
        self._results = [0] * (num_rows + 1)  # when the row came in
        self._block_size = block_size

    def enter(self, seq: Sequence) -> None:
        """Takes a sequence in if it only decodes, and has a step before its last."""
        group, row, granted = seq.group, seq.row, seq.granted
        if not seq.prompt_len <= granted < seq.limit - 1 or not group.plain or row is None:
            return
        if len(seq.tokens) + seq.pending != granted + 1:
            return
        self.granted[row] = granted
        self.extend(seq)
        self._count_results(seq, row, seq.computed)
        self.ids[row] = group.id
        for token in seq.stop:
            self.stops[token] += 1
        seq.lane = self

    def leave(self, seq: Sequence) -> None:
        """Gives a sequence back what is its own."""
        row = seq.row
        assert row is not None
        self.settle(seq)
        seq.lane = None
        seq.granted = granted = self.granted[row]
        seq.pending = granted + 1 - len(seq.tokens)
        self.grants[row] = self.results[row] = 0
        for token in seq.stop:
            self.stops[token] -= 1
            if not self.stops[token]:
                del self.stops[token]

    def extend(self, seq: Sequence) -> None:
        """A sequence's table is as long as it is now. Its last token is never granted."""
        row = seq.row
        assert row is not None
        until = min(len(seq.table) * self._block_size, seq.limit - 1)
        self.grants[row] = max(0, until - self.granted[row])

    def settle(self, seq: Sequence) -> None:
        """Tells a sequence of the results that have come."""
        row = seq.row
        assert row is not None
        place, left = row * self._block_size, self.results[row]
        seq.receive(self.tokens[place + left : place + self._results[row]][::-1])
        self._results[row] = left

    def fill(self, seq: Sequence, token: int) -> int | None:
        """Takes in a result that fills a block: how many tokens of the sequence are computed now.
        None, and nothing, where this is another one, or the last. `publish` is to follow."""
        self.settle(seq)
        known, computed = seq.received()
        bound = (seq.published + 1) * self._block_size
        if computed + 1 != bound or known + 1 >= seq.limit:
            return None
        seq.receive(array("I", [token]))
        return bound

    def filled(self, seq: Sequence, computed: int) -> None:
        """A block was published: how many results may come from here on."""
        assert seq.row is not None
        self._count_results(seq, seq.row, computed)

    def _count_results(self, seq: Sequence, row: int, computed: int) -> None:
        # The result that fills a block, or that brings the last token, takes more than a glance.
        bound = min((seq.published + 1) * self._block_size, seq.limit - 1)
        self.results[row] = self._results[row] = max(0, bound - computed - 1)
