"""How long requests wait for their first token, lately: those that had it, and those that have not.

Bounded however many requests there are. No clock of its own: times are passed in, in seconds.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

LATELY_SECONDS = 30.0
KEPT = 500
QUANTILE = 0.9


class FirstTokens:
    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}  # of requests that have no token yet, oldest first
        self._had: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when, after how long

    def arrived(self, name: str, now: float) -> None:
        """A request was queued."""
        self._arrived[name] = now

    def came(self, name: str, now: float) -> float | None:
        """A request got a token. How long it waited, where that was its first."""
        arrived = self._arrived.pop(name, None)
        if arrived is None:
            return None
        self._had.append((now, now - arrived))
        return now - arrived

    def gone(self, name: str) -> None:
        """A request has ended, with a token or without."""
        self._arrived.pop(name, None)

    def lately(self, now: float) -> tuple[float, int]:
        """What nine of ten recent requests kept below, and how many they are. Those that still
        wait have waited at least as long as they have so far."""
        while self._had and self._had[0][0] < now - LATELY_SECONDS:
            self._had.popleft()
        waits = [waited for _, waited in self._had]
        waits += [now - arrived for arrived in islice(self._arrived.values(), KEPT)]
        waits.sort()
        if not waits:
            return 0.0, 0
        return waits[math.ceil(QUANTILE * len(waits)) - 1], len(waits)
