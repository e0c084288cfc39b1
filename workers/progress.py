"""A counter that a heartbeat thread reads while the main thread computes.

Every rank counts the same events of a step (one a layer, or one where a tape of kernel calls is
played), so of a group that is stuck the rank with the lowest count is the one that the others wait
for.
"""

from __future__ import annotations


class Progress:
    """One writer, any number of readers; an int's assignment is atomic in CPython."""

    def __init__(self) -> None:
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1
