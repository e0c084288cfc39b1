"""How fast prompts are computed and blocks are copied, by what the workers measured."""

from __future__ import annotations

from octavo.scheduler.draft import Flight
from octavo.scheduler.plan import StepResult

WEIGHT = 0.2  # of the newest measurement in the average
SWAP_FIXED_SECONDS = 1e-3  # of two transfers, whatever their size
# Until something was measured: a slow prefill, and a slow bus.
FIRST_SECONDS_A_TOKEN = 2e-4
FIRST_BYTES_A_SECOND = 4e9


class Rates:
    """Moving averages of how fast prompts are computed and blocks are copied."""

    def __init__(self, block_bytes: int) -> None:
        self.seconds_a_token = FIRST_SECONDS_A_TOKEN
        self.seconds_a_block = block_bytes / FIRST_BYTES_A_SECOND
        self._computed = self._copied = False

    def observe_step(self, flight: Flight, result: StepResult) -> None:
        """What a step tells of both. One that mostly decodes says nothing of prompts."""
        self._observe_copies(result.copied_blocks, result.copy_seconds)
        tokens, chunked = flight.draft.tokens, flight.draft.chunked
        if result.compute_seconds <= 0 or 2 * chunked < tokens or not tokens:
            return
        measured = result.compute_seconds / tokens
        weight = WEIGHT if self._computed else 1.0
        self.seconds_a_token += weight * (measured - self.seconds_a_token)
        self._computed = True

    def _observe_copies(self, blocks: int, seconds: float) -> None:
        if blocks == 0 or seconds <= 0:
            return
        weight = WEIGHT if self._copied else 1.0
        self.seconds_a_block += weight * (seconds / blocks - self.seconds_a_block)
        self._copied = True

    def recompute(self, tokens: int) -> float:
        """Seconds to compute so many tokens again."""
        return tokens * self.seconds_a_token

    def swap(self, out: int, back: int) -> float:
        """Seconds to copy so many blocks out, and so many back."""
        return SWAP_FIXED_SECONDS + (out + back) * self.seconds_a_block
