"""What executes plans, as its executors see it: a model's rank, or the null one."""

from __future__ import annotations

from typing import Protocol

from octavo.scheduler.config import Capacity
from octavo.workers.progress import Progress


class Member(Protocol):
    """Called in this order: load, measure, allocate, then execute any number of times; at the
    end close, unless its process ends too."""

    @property
    def progress(self) -> Progress:
        """Counts up while a plan is executed; read from another thread."""

    def load(self) -> None: ...

    def measure(self) -> int:
        """Blocks there is room for, the null block included."""

    def allocate(self, num_blocks: int) -> Capacity:
        """Takes the memory of both tiers: `num_blocks` on the device, and on the host as many as
        the answer says."""

    def execute(self, raw: bytes) -> bytes | None:
        """Rank 0 answers with a result. Raises `OutOfStep` before anything is touched."""

    def close(self) -> None:
        """Ends the threads that it has, once nothing is executed any more. In any state."""
