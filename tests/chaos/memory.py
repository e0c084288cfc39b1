"""How much memory the parts hold, over time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

import psutil  # type: ignore[import-untyped]

SHARE = 6  # the first and the last of so many parts of the time are compared


class Memory:
    """Samples of processes that live long. A role's figure is the sum over those of its processes
    that were there in every sample, in bytes."""

    def __init__(self) -> None:
        self._samples: dict[str, list[dict[psutil.Process, int]]] = defaultdict(list)

    def sample(self, role: str, processes: Iterable[psutil.Process]) -> None:
        """`processes` that are gone are left out."""
        found = {}
        for process in processes:
            try:
                found[process] = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self._samples[role].append(found)

    def growth(self) -> dict[str, tuple[int, int, float, int]]:
        """By role: bytes at first and at last, how much more that is as a share, and how many
        processes lived through it. Medians, so that one sample proves nothing."""
        result = {}
        for role, samples in self._samples.items():
            lasting = set.intersection(*(set(each) for each in samples))
            if not lasting or len(samples) < SHARE:
                continue
            sums = [sum(each[process] for process in lasting) for each in samples]
            part = max(1, len(sums) // SHARE)
            first, last = statistics.median(sums[:part]), statistics.median(sums[-part:])
            result[role] = int(first), int(last), last / first - 1, len(lasting)
        return result
