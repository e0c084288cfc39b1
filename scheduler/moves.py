"""Memory operations of one plan, as (source, target) pairs of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Pairs = list[tuple[int, int]]


@dataclass(slots=True)
class Moves:
    """In the order in which workers execute them; computing comes before `store`."""

    swap_out: Pairs = field(default_factory=list)  # device to host
    swap_in: Pairs = field(default_factory=list)  # host to device
    copy: Pairs = field(default_factory=list)  # device to device
    store: Pairs = field(default_factory=list)  # device to host

    def take(self) -> Moves:
        """What was collected; collecting starts anew."""
        taken = Moves(self.swap_out, self.swap_in, self.copy, self.store)
        self.swap_out, self.swap_in, self.copy, self.store = [], [], [], []
        return taken

    @classmethod
    def of(cls, parts: Iterable[Moves]) -> Moves:
        """All of several plans."""
        whole = cls()
        for part in parts:
            whole.swap_out += part.swap_out
            whole.swap_in += part.swap_in
            whole.copy += part.copy
            whole.store += part.store
        return whole
