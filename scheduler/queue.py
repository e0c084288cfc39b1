"""Who waits, in the order in which they may be admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.scheduler.group import Group


def _order(group: Group) -> tuple[int, bool, int]:
    """Priority, then those that had begun before the new, then first come, first served."""
    begun = group.moved or group.preemptions > 0
    return group.priority, not begun, group.number


class WaitingQueue:
    """Requests without rows, sorted. Inserting is a binary search and a memory move."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def push(self, group: Group) -> None:
        insort(self._groups, group, key=_order)

    def remove(self, group: Group) -> None:
        place = bisect_left(self._groups, _order(group), key=_order)
        assert self._groups[place] is group
        del self._groups[place]

    def drop_admitted(self, among: int) -> None:
        """Takes out those of the first so many that were given rows."""
        first = self._groups[:among]
        self._groups[:among] = [group for group in first if not group.running]
