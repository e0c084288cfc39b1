"""Which replicas are up, as one ingress knows it: what they say, how long ago, and who was buried.

Pure: no sockets, no Ray, no clock of its own. A replica that has been silent counts again when it
speaks again; one that is known to be dead never does, whatever of it is still on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cluster.stats import EngineStats

FRESH_SECONDS = 5.0  # a replica that sends no snapshot for so long does not count
REMEMBERED_SECONDS = 600.0  # a replica that is not heard any more; Serve has forgotten it by then


@dataclass(frozen=True, slots=True)
class _Heard:
    stats: EngineStats
    at: float


class RollCall:
    """Times are seconds of one monotonic clock. `last_fault` is why the last one died."""

    def __init__(self) -> None:
        self.last_fault: str | None = None
        self._heard: dict[str, _Heard] = {}
        self._buried: dict[str, float] = {}  # when, by name

    def hear(self, stats: EngineStats, now: float) -> bool:
        """Takes a snapshot. False where it says that no step can run there any more: the replica
        is on its way out."""
        if stats.fault is not None:
            self.bury(stats.replica, stats.fault, now)
            return False
        if stats.replica not in self._buried:
            self._heard[stats.replica] = _Heard(stats, now)
        self._forget(now)
        return True

    def bury(self, name: str, reason: str, now: float) -> None:
        """A replica is dead."""
        self.last_fault = reason
        self._heard.pop(name, None)
        self._buried[name] = now

    def hang_up(self, name: str, now: float) -> None:
        """A replica's connection has ended: as if it had been silent for too long."""
        if (heard := self._heard.get(name)) is not None:
            self._heard[name] = _Heard(heard.stats, min(heard.at, now - FRESH_SECONDS))

    def is_buried(self, name: str) -> bool:
        return name in self._buried

    def stats(self, now: float) -> list[EngineStats]:
        """The latest snapshot of every replica that counts."""
        return [each.stats for each in self._heard.values() if _is_fresh(each, now)]

    def silent(self, now: float) -> list[str]:
        """Replicas that nothing was heard of for too long, though nobody says that they died."""
        return [name for name, each in self._heard.items() if not _is_fresh(each, now)]

    def avoided(self, now: float) -> list[str]:
        """Replicas that should get no request."""
        return [*self._buried, *self.silent(now)]

    def _forget(self, now: float) -> None:
        oldest = now - REMEMBERED_SECONDS
        self._buried = {name: at for name, at in self._buried.items() if at >= oldest}
        self._heard = {name: each for name, each in self._heard.items() if each.at >= oldest}


def _is_fresh(heard: _Heard, now: float) -> bool:
    return now - heard.at < FRESH_SECONDS
