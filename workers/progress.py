"""What a heartbeat thread reads while the main thread computes: how far a rank is, what steps took.

Every rank counts the same events of a step (one a layer, or one where all of them are on one tape),
so of a group that is stuck the rank with the lowest count is the one that the others wait for.
"""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one rank since it started: steps, the seconds that they took, and of these the seconds in
    which it exchanged values with the other ranks or waited for them. The latter is 0 where a
    device does that by itself, as GPUs do."""

    steps: int = 0
    seconds: float = 0.0
    exchanging: float = 0.0


class Progress:
    """One writer, any number of readers; an attribute's assignment is atomic in CPython."""

    def __init__(self) -> None:
        self.ticks = 0
        self.tally = Tally()

    def tick(self) -> None:
        self.ticks += 1

    def stepped(self, seconds: float, exchanging: float = 0.0) -> None:
        """A step has ended. `exchanging` is the total of all steps so far."""
        before = self.tally
        self.tally = Tally(before.steps + 1, before.seconds + seconds, exchanging)
