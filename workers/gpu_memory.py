"""How many bytes of a GPU are left for the cache: all that a worker may use, less what a step and
the graphs were seen to take.

The arithmetic is apart from the measuring, and the measuring speaks to the GPU through a `Meter`,
so that both can be followed where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.cache import Budget, Layout, amount
from octavo.workers.graphs import graphs_bytes
from octavo.workers.largest_step import StepSize

DIVIDE = "divide the model by a larger --tensor-parallel-size"
SMALLER_CACHE = (
    "lower --gpu-memory-utilization, or what --kv-cache-memory-bytes or --num-gpu-blocks-override "
    "ask for, or set --enforce-eager"
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cache is for: requests of so many tokens, in blocks of this layout."""

    layout: Layout
    max_model_len: int


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes of a GPU that no step changes, and how much of it may be used; see `gpu_budget`."""

    total: int
    utilization: float
    weights: int
    others: int
    staging: int

    @classmethod
    def by(cls, meter: Meter, utilization: float, staging: int) -> _Held:
        free, total = meter.free_and_total()
        weights = meter.reserved()
        return cls(total, utilization, weights, total - free - weights, staging)

    def budget(self, peak: int, graphs: int, note: str = "") -> Budget:
        return gpu_budget(
            total=self.total,
            utilization=self.utilization,
            weights=self.weights,
            others=self.others,
            peak=peak,
            graphs=graphs,
            staging=self.staging,
            note=note,
        )


def gpu_budget(
    *,
    total: int,
    utilization: float,
    weights: int,
    others: int,
    peak: int,
    graphs: int,
    staging: int = 0,
    note: str = "",
) -> Budget:
    """What is left of `utilization` of a GPU's `total` bytes beside the `weights` with all else
    that this process holds, `others` (other processes, and what CUDA and its libraries take for
    themselves), the `peak` of the largest step, the `graphs`, and the `staging` buffers of swaps.
    `note` says how the peak or the graphs are known, where they were not measured."""
    usable = int(total * utilization)
    lines = [
        (f"{utilization:g} of {amount(total)} (--gpu-memory-utilization)", usable),
        ("weights, and buffers beside them", -weights),
        ("CUDA itself and other processes", -others),
        (f"peak of the largest step{'' if graphs else note}", -peak),
    ]
    if graphs:
        lines.append((f"CUDA graphs{note or ' (none with --enforce-eager)'}", -graphs))
    if staging:
        lines.append(("staging of small blocks for swaps", -staging))
    left = usable + sum(size for _, size in lines[1:])
    return Budget(max(0, left), tuple(lines), "raise --gpu-memory-utilization")


def profile(
    meter: Meter,
    utilization: float,
    largest: StepSize,
    run_step: Callable[[StepSize], None],
    trial: Trial,
    wanted: Wanted,
    staging: int = 0,
) -> Budget:
    """Runs steps up to the `largest` on a GPU that holds the weights, and records the two largest
    graphs, and sees how much more each of them takes. Raises `InvalidRequest` where memory runs
    out, with the budget as far as it is known, and what would fit.

    The smaller steps tell how memory grows with a step, for the case that the largest does not fit.
    They come first, as the ranks of a group must run the same steps, and only some may fail.
    """
    peaks: list[tuple[StepSize, int]] = []
    for size in largest.rising():
        taken = _peak(meter, partial(run_step, size))
        if taken is None:
            held = _Held.by(meter, utilization, staging)
            text = _no_step(held, size, peaks, largest, wanted)
            raise InvalidRequest("gpu_memory_utilization", text)
        peaks.append((size, taken))
    held = _Held.by(meter, utilization, staging)
    peak = peaks[-1][1]
    took: list[int] = []
    for rows in sorted(trial.sizes, reverse=True)[:2]:
        before, _ = meter.free_and_total()
        if not _fits(partial(trial.record, rows)):
            trial.discard()
            text = _no_graphs(held, peak, sum(took) + before, wanted)
            raise InvalidRequest("gpu_memory_utilization", text)
        meter.settle()
        took.append(before - meter.free_and_total()[0])
    trial.discard()
    meter.settle()
    first, next_one = (*took, 0, 0)[:2]
    return held.budget(peak, graphs_bytes(max(0, first), next_one, len(trial.sizes)))


def _peak(meter: Meter, step: Callable[[], None]) -> int | None:
    """How much a step took at most; None where the GPU ran out of memory."""
    meter.settle()
    meter.forget_peak()
    before = meter.allocated()
    fits = _fits(step)
    meter.settle()
    return meter.peak() - before if fits else None


def _fits(work: Callable[[], None]) -> bool:
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    return True


def _no_step(
    held: _Held,
    failed: StepSize,
    peaks: list[tuple[StepSize, int]],
    largest: StepSize,
    wanted: Wanted,
) -> str:
    """Of the steps tried, `failed` ran out of memory, and `peaks` are of those before it."""
    free = held.total - held.weights - held.others
    if peaks:
        peak, note = max(free, _extrapolated(peaks, largest.tokens)), ", estimated"
    else:
        peak, note = free, ", more than"
    budget = held.budget(peak, 0, note)
    remedy = f"lower --max-num-batched-tokens or --max-num-seqs, or {DIVIDE}"
    # The largest with which all of what is wanted fits, or else the one that leaves most.
    smaller = [(size, held.budget(taken, 0).fitting(wanted.layout)) for size, taken in peaks]
    enough = [each for each in smaller if each[1] >= wanted.max_model_len]
    if smaller:
        size, fitting = enough[-1] if enough else smaller[0]
        remedy = (
            f"set {size.flags}, with which the largest length that fits is {fitting} tokens (CUDA "
            f"graphs not counted), or {DIVIDE}"
        )
    what = "the largest step" if failed == largest else "a part of the largest step"
    headline = f"the GPU ran out of memory for {what}, of {failed}"
    if failed != largest:
        headline += f" ({largest} are to be served)"
    return replace(budget, remedy=remedy).explained(headline, wanted.layout, wanted.max_model_len)


def _extrapolated(peaks: list[tuple[StepSize, int]], tokens: int) -> int:
    """What a step of so many tokens takes, as a line through the last two says, or a line from
    nothing through the only one; not less than the last."""
    (last, most), (before, less) = peaks[-1], (peaks[-2] if len(peaks) > 1 else (StepSize(0, 0), 0))
    growth = max(0, most - less) / (last.tokens - before.tokens)
    return most + int(growth * (tokens - last.tokens))


def _no_graphs(held: _Held, peak: int, took: int, wanted: Wanted) -> str:
    """`took` is what the graphs that were recorded took, and all that was free for the next."""
    without = held.budget(peak, 0).fitting(wanted.layout)
    remedy = (
        f"set --enforce-eager, with which the largest length that fits is {without} tokens, lower "
        f"--cuda-graph-sizes, or {DIVIDE}"
    )
    budget = replace(held.budget(peak, took, ", more than"), remedy=remedy)
    headline = "the GPU ran out of memory for recording CUDA graphs"
    return budget.explained(headline, wanted.layout, wanted.max_model_len)


@contextmanager
def explained(what: str, meter: Meter, advice: str) -> Iterator[None]:
    """Has a GPU that runs out of memory named in a sentence, with what was held before."""
    held = meter.reserved()
    try:
        yield
    except torch.OutOfMemoryError:
        free, total = meter.free_and_total()
        raise InvalidRequest(
            "gpu_memory_utilization",
            f"the GPU ran out of memory for {what}: of its {amount(total)}, this process held "
            f"{amount(held)} before, and {amount(free)} are free now; {advice}",
        ) from None
