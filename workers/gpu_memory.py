"""How many bytes of a GPU are left for the cache: all that a worker may use, less what a step and
the graphs were seen to take.

The arithmetic is apart from the measuring, and the measuring speaks to the GPU through a `Meter`,
so that both can be followed where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.cache import Budget, amount
from octavo.workers.graphs import graphs_bytes

ADVICE = (
    "raise --gpu-memory-utilization, lower --max-num-batched-tokens or --max-num-seqs, or divide "
    "the model by a larger --tensor-parallel-size"
)


class Meter(Protocol):
    """What a GPU says of its memory. Bytes; torch's are those of this process alone."""

    def settle(self) -> None:
        """Waits until the GPU is done, and gives back what torch only keeps for later."""

    def allocated(self) -> int:
        """In use by tensors now."""

    def peak(self) -> int:
        """The most that was in use by tensors since the last `forget_peak`."""

    def forget_peak(self) -> None: ...

    def free_and_total(self) -> tuple[int, int]:
        """Of the whole GPU, all processes together."""

    def reserved(self) -> int:
        """Held by torch."""


class CudaMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def free_and_total(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free), int(total)

    def reserved(self) -> int:
        return int(torch.cuda.memory_reserved(self._device))


@dataclass(frozen=True, slots=True)
class Trial:
    """Graphs to be: `record` makes the one of a size, of those in `sizes`, and `discard` lets go of
    what was made. Without any size nothing is recorded."""

    sizes: tuple[int, ...]
    record: Callable[[int], None]
    discard: Callable[[], None]


def gpu_budget(
    *, total: int, utilization: float, weights: int, others: int, peak: int, graphs: int
) -> Budget:
    """What is left of `utilization` of a GPU's `total` bytes beside the `weights` with all else
    that this process holds, `others` (other processes, and what CUDA and its libraries take for
    themselves), the `peak` of the largest step, and the `graphs`."""
    usable = int(total * utilization)
    lines = [
        (f"GPU memory times {utilization:g} (--gpu-memory-utilization)", usable),
        ("weights, and buffers beside them", -weights),
        ("CUDA itself and other processes", -others),
        ("peak of the largest step", -peak),
    ]
    if graphs:
        lines.append(("CUDA graphs (none with --enforce-eager)", -graphs))
    left = usable - weights - others - peak - graphs
    return Budget(max(0, left), tuple(lines), "raise --gpu-memory-utilization")


def profile(
    meter: Meter, utilization: float, largest_step: Callable[[], None], trial: Trial
) -> Budget:
    """Runs `largest_step` on a GPU that holds the weights, and records the two largest graphs, and
    sees how much more each of them takes. Raises `InvalidRequest` where the step runs out of
    memory."""
    meter.settle()
    meter.forget_peak()
    before_step = meter.allocated()
    with explained("the largest step", meter):
        largest_step()
    meter.settle()
    peak = meter.peak() - before_step
    free, total = meter.free_and_total()
    weights = meter.reserved()
    took = []
    with explained("recording CUDA graphs", meter):
        for size in sorted(trial.sizes, reverse=True)[:2]:
            before, _ = meter.free_and_total()
            trial.record(size)
            meter.settle()
            took.append(before - meter.free_and_total()[0])
    trial.discard()
    meter.settle()
    largest, next_one = (*took, 0, 0)[:2]
    return gpu_budget(
        total=total,
        utilization=utilization,
        weights=weights,
        others=total - free - weights,
        peak=peak,
        graphs=graphs_bytes(max(0, largest), next_one, len(trial.sizes)),
    )


@contextmanager
def explained(what: str, meter: Meter) -> Iterator[None]:
    """Has a GPU that runs out of memory named in a sentence, with what was held before."""
    held = meter.reserved()
    try:
        yield
    except torch.OutOfMemoryError:
        free, total = meter.free_and_total()
        raise InvalidRequest(
            "gpu_memory_utilization",
            f"the GPU ran out of memory for {what}: of its {amount(total)}, this process held "
            f"{amount(held)} before, and {amount(free)} are free now; {ADVICE}",
        ) from None
