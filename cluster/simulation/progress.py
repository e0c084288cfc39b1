"""How far a long simulation has come, said now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from octavo.cluster.simulation.workload import Job, Series

EVERY_SECONDS = 15.0
LOOK = 4096  # requests between two looks at the clock


class Told:
    """The same requests; whoever goes through them says how many have arrived."""

    def __init__(self, jobs: Series[Job], say: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._say = say

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        began = last = time.monotonic()
        for number, job in enumerate(self._jobs):
            look = number and number % LOOK == 0
            if look and (now := time.monotonic()) >= last + EVERY_SECONDS:
                last, left = now, (len(self) - number) * (now - began) / number
                self._say(
                    f"{number:,} of {len(self):,} requests, {number / (now - began):,.0f} a "
                    f"second, {left / 60:.1f} minutes left"
                )
            yield job
