"""Copy lines that are as late as they may be, and some that don't wait: the fences' adversaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.workers.copy_thread import CopyThread
from octavo.workers.tiers import Pair


class Late(CopyThread):
    """Copies nothing until somebody waits for it. `waits` are the tickets waited for. End it with
    `finish`."""

    def __init__(self, *tiers: Any) -> None:
        super().__init__(*tiers)
        self.waits: list[int] = []
        self._allowed = 0

    def finish(self) -> None:
        self._release(self._issued)
        CopyThread._await(self, self._issued)

    def _await(self, ticket: int) -> None:
        self.waits.append(ticket)
        self._release(ticket)
        super()._await(ticket)

    def _release(self, ticket: int) -> None:
        with self._moved:
            self._allowed = max(self._allowed, ticket)
            self._moved.notify_all()

    def _copy(self, pair: Pair, inward: bool) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: self._allowed > self._finished, timeout=60)
        super()._copy(pair, inward)


class Overwriting(Late):
    """Does not wait for copies that read what is about to be written."""

    def _fence(self, written: Iterable[int]) -> None:
        pass


class Impatient(Late):
    """Does not wait at all."""

    def _await(self, ticket: int) -> None:
        self.waits.append(ticket)
