"""What a figure was measured on, and how fast that machine was at that moment.

Shared machines change speed from minute to minute, so every row carries a probe of its own.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path


def describe() -> str:
    """Processor, cores, memory, and the versions that matter, in one line."""
    import torch

    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """The median wall time of `work`."""
    walls = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        walls.append(time.perf_counter() - start)
    return statistics.median(walls)


def probe(threads: int) -> str:
    """bf16 matrix multiplication in TFLOP/s and memory reading in GB/s, right now."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(512, 1536).bfloat16(), torch.randn(1536, 1536).bfloat16()
    memory = torch.ones(32 * 2**20)  # 128 MiB, far larger than a cache
    torch.mm(a, b)
    flops = 2 * 512 * 1536 * 1536 / seconds(lambda: torch.mm(a, b), 15)
    read = memory.numel() * 4 / seconds(memory.sum)
    return f"{flops / 1e12:.2f} TFLOP/s, {read / 1e9:.0f} GB/s"


def row(*cells: object) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"
