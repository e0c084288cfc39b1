"""When to make the next plan while a step runs: late, so that newcomers still get into it, but
early enough that the workers never wait for it.

A plan made too early holds up every request that arrives before it runs: they wait for a whole step
that could have carried them.
"""

from __future__ import annotations

WEIGHT = 0.3  # of the newest step in the average
EARLY = 0.15  # of a step's length: how much sooner than its end the next plan is made
LEAST_SECONDS = 0.003  # and at least so much sooner


class Pace:
    """Remembers how long steps took, by the size class (power of two) of their tokens."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took the workers so long."""
        size = tokens.bit_length()
        before = self._seconds.get(size, seconds)
        self._seconds[size] = before + WEIGHT * (seconds - before)

    def hold(self, tokens: int) -> float:
        """Seconds after the start of such a step at which to make the next plan; 0 is at once, as
        for a size that was never seen."""
        expected = self._seconds.get(tokens.bit_length(), 0.0)
        return max(0.0, expected * (1 - EARLY) - LEAST_SECONDS)
