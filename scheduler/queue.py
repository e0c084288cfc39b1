"""Who waits, in the order in which they may be admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.scheduler.sequence import Sequence


def _order(seq: Sequence) -> tuple[int, bool, int]:
    """Priority, then the preempted before the new, then first come, first served."""
    return seq.priority, seq.preemptions == 0, seq.number


class WaitingQueue:
    """Sequences without a row, sorted. Inserting is a binary search and a memory move."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def push(self, seq: Sequence) -> None:
        insort(self._sequences, seq, key=_order)

    def remove(self, seq: Sequence) -> None:
        place = bisect_left(self._sequences, _order(seq), key=_order)
        assert self._sequences[place] is seq
        del self._sequences[place]

    def drop_admitted(self) -> None:
        """Takes out those that were given a row."""
        self._sequences = [seq for seq in self._sequences if seq.row is None]
