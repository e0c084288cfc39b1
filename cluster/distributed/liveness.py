"""Whether a group of ranks is alive: observations with their times in, a verdict out.

Pure: no sockets, no clock of its own. Two things condemn a group. A rank that sends no heartbeat is
gone or stopped. A step that is in flight while no rank moves is stuck, and the rank that got least
far is what the others wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.workers.channel import Beat
from octavo.workers.progress import Tally

SILENCE_SECONDS = 8.0
MISSED_SECONDS = 3.0  # a rank so silent is why the others are stuck


@dataclass(slots=True)
class _Seen:
    """The last heartbeat of a rank, and when."""

    at: float
    beat: Beat | None = None


class Liveness:
    """Times are seconds of one monotonic clock."""

    def __init__(self, world: int, now: float, *, silence: float = SILENCE_SECONDS) -> None:
        self._silence = silence
        self._seen = [_Seen(now) for _ in range(world)]
        self._moved_at = now
        self._in_flight = 0
        self._complaints: dict[int, str] = {}

    def begin(self, now: float) -> None:
        """Everyone is there: silence counts from now on."""
        for seen in self._seen:
            seen.at = now

    def beat(self, beat: Beat, now: float) -> None:
        """A heartbeat arrived."""
        seen = self._seen[beat.rank]
        if seen.beat is None or seen.beat.ticks != beat.ticks:
            self._moved_at = now
        seen.at, seen.beat = now, beat

    def sent(self, now: float) -> None:
        """A plan went out."""
        if self._in_flight == 0:
            self._moved_at = now
        self._in_flight += 1

    def answered(self, now: float) -> None:
        """A plan's answer came back."""
        self._in_flight -= 1
        self._moved_at = now

    def complained(self, rank: int, words: str) -> None:
        """A rank said why it did not execute a plan; it is repeated if the group gets stuck."""
        self._complaints[rank] = words

    def tallies(self) -> list[Tally]:
        """What the steps of each rank took, as far as its last heartbeat said."""
        return [Tally() if seen.beat is None else seen.beat.tally for seen in self._seen]

    def describe(self, rank: int) -> str:
        """ "rank 1 (pid 4711 on 10.0.0.7, last took plan 12)"."""
        beat = self._seen[rank].beat
        if beat is None:
            return f"rank {rank}"
        return f"rank {rank} (pid {beat.pid} on {beat.node}, last took plan {beat.received})"

    def verdict(self, now: float) -> str | None:
        """None while all is well, else one sentence that names the rank."""
        quiet = max(range(len(self._seen)), key=lambda rank: now - self._seen[rank].at)
        silence = now - self._seen[quiet].at
        stuck = now - self._moved_at if self._in_flight else 0.0
        if silence > self._silence or (stuck > self._silence and silence > MISSED_SECONDS):
            return f"{self.describe(quiet)} has sent no heartbeat for {silence:.1f} s"
        if stuck > self._silence:
            rank = self._last()
            words = self._complaints.get(rank)
            return (
                f"{self.describe(rank)} is stuck: a step is in flight and no rank has moved for "
                f"{stuck:.1f} s" + (f"; its last words: {words}" if words else "")
            )
        return None

    def _last(self) -> int:
        """The rank that got least far; one that complained goes first."""

        def reached(rank: int) -> tuple[bool, int, int]:
            beat = self._seen[rank].beat
            return (
                rank not in self._complaints,
                beat.received if beat else -1,
                beat.ticks if beat else -1,
            )

        return min(range(len(self._seen)), key=reached)
