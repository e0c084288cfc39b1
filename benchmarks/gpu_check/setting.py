"""Where the check runs, and how large it is: full on a GPU, tiny where only its own health is
tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Setting:
    """`folder` holds the models that the parts make. `tiny` shrinks every size."""

    device: torch.device
    dtype: str
    kernels: str
    folder: Path
    tiny: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 20) -> float:
        """Of one run of `work`, by the device's clock, the runs being asked for back to back; the
        least of three such rounds."""
        if self.tiny:
            times = 2
        work()
        found = []
        for _ in range(3):
            self.synchronize()
            if self.device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(times):
                    work()
                end.record()
                end.synchronize()
                found.append(start.elapsed_time(end) / 1e3 / times)
            else:
                began = time.perf_counter()
                for _ in range(times):
                    work()
                found.append((time.perf_counter() - began) / times)
        return max(min(found), 1e-9)
