"""How long blocks live, and how long they lie unused.

Of one block in `SAMPLE` two numbers are kept, and one list entry an event, so that the pool pays
next to nothing; whoever keeps statistics takes the events and sorts them.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

SAMPLE = 8
MOST_EVENTS = 4096  # that wait to be taken: where nobody takes them, it ends there
_WRAP = 0xFFFFFFFF  # milliseconds in 32 bits: 49 days, and differences survive the turn


class Eviction(NamedTuple):
    """Content that was given up for other content, in seconds."""

    lifetime: float  # since its block was handed out
    idle: float  # since the last request that held it ended


class Ages:
    """Of blocks whose number leaves a rest of 1: every `SAMPLE`th, as blocks come in any order."""

    __slots__ = ("evicted", "now", "reused", "taken", "used")

    def __init__(self, num_blocks: int) -> None:
        self.now = 0
        self.taken = array("I", [0]) * num_blocks  # when each was handed out
        self.used = array("I", [0]) * num_blocks  # when the last that held it let it go
        self.evicted: list[tuple[int, int]] = []  # milliseconds since both
        self.reused: list[int] = []  # milliseconds that it lay before it was found again

    def tell(self, now: float) -> None:
        """The time, in seconds on any clock that does not go back."""
        self.now = int(now * 1000) & _WRAP

    def evict(self, block: int) -> None:
        """Its content is about to be forgotten for another's."""
        if len(self.evicted) == MOST_EVENTS:
            return
        now = self.now
        self.evicted.append(((now - self.taken[block]) & _WRAP, (now - self.used[block]) & _WRAP))

    def reuse(self, block: int) -> None:
        """It was found while nobody held it."""
        if len(self.reused) < MOST_EVENTS:
            self.reused.append((self.now - self.used[block]) & _WRAP)

    def take(self) -> tuple[list[Eviction], list[float]]:
        """The events since the last call: evictions, and seconds that blocks lay before they were
        found again."""
        evicted, self.evicted = self.evicted, []
        reused, self.reused = self.reused, []
        evictions = [Eviction(life / 1000, idle / 1000) for life, idle in evicted]
        return evictions, [gap / 1000 for gap in reused]
