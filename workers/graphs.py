"""Decode steps as CUDA graphs: recorded once for each size of the ladder, and played.

Launching a step's kernels one by one takes Python longer than a GPU takes to run those of a small
batch; a graph is launched whole. It reads its inputs where they were when it was recorded, so all
sizes share one piece of memory on the device into which each step's arrays are copied.

Steps with a chunk of a prompt are not recorded: their kernels run long enough. Nor is attention to
a prefix that all rows share, which a played step reads once a row: see `octavo.kernels.cuda.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.base import Batch, Kernels
from octavo.workers.batch import Arrays, StepInput
from octavo.workers.ladder import filled_up, nothing_but_filling, rung
from octavo.workers.latest import Latest
from octavo.workers.upload import Packing, staged

WARM_UPS = 2  # what is compiled, chosen or allocated at a first call must not be recorded

Forward = Callable[[StepInput], Tensor]
"""The last hidden states of a pass."""


class Recording(Protocol):
    """Calls that were recorded. `hidden` is their result, in the same memory each time."""

    @property
    def hidden(self) -> Tensor: ...

    def replay(self) -> None: ...


Capture = Callable[[Callable[[], Tensor]], Recording]
"""Runs calls at least once and records them."""


class DecodeGraphs:
    """`sizes` rise. Contexts have at most `row_blocks` blocks. First `record`, then any number of
    `prepare` and `play`, for steps for which `size_for` finds a size."""

    def __init__(
        self,
        sizes: Sequence[int],
        row_blocks: int,
        block_size: int,
        device: torch.device,
        kernels: Kernels,
        capture: Capture,
    ) -> None:
        self.sizes = tuple(sizes)
        self._block_size = block_size
        self._device = device
        self._kernels = kernels
        self._capture = capture
        self._graphs: dict[int, Recording] = {}
        top = self.sizes[-1]
        rooms = [top, top, top + 1, top + 1, top, top, top * row_blocks]
        self._packing = Packing(rooms, [np.dtype(np.int32)] * len(rooms))
        size = self._packing.offsets[-1]
        self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
        self._inputs = self._packing.views(self._memory)

    def record(self, forward: Forward, sizes: Sequence[int] | None = None) -> None:
        """Records `forward` for all sizes, or for `sizes` of them. The largest comes first: the
        others find room in the memory that it took."""
        for size in sorted(sizes or self.sizes, reverse=True):
            step = self._place(nothing_but_filling(size))
            self._kernels.begin_step(step.batch)
            self._graphs[size] = self._capture(partial(forward, step))

    def size_for(self, step: Arrays) -> int | None:
        """The size to play for a step; None for one that is too large, or has a row of several
        tokens."""
        rows = step.num_rows
        return rung(rows, self.sizes) if len(step.ids) == rows else None

    def prepare(self, step: Arrays, size: int, latest: Latest) -> None:
        """Puts a step where the graph of `size` reads it, its last tokens being in `latest`."""
        placed = self._place(filled_up(step, size))
        latest.fill(placed.ids, step)
        self._kernels.begin_step(placed.batch)

    def play(self, step: Arrays, size: int) -> Tensor:
        """The last hidden states of the rows of the step that was prepared last, valid until the
        next one is."""
        graph = self._graphs[size]
        graph.replay()
        return graph.hidden[: step.num_rows]

    def _place(self, step: Arrays) -> StepInput:
        """Copies a filled-up step to where graphs look for it."""
        arrays = [
            *(step.ids, step.positions, step.qo_indptr, step.kv_indptr),
            *(step.kv_last_page_len, step.slots, step.kv_indices),  # what varies most comes last
        ]
        if self._device.type == "cpu":
            self._packing.fill(self._memory.numpy(), arrays)
        else:
            staging = staged(self._packing.offsets[-2] + step.kv_indices.nbytes)
            used = self._packing.fill(staging.numpy(), arrays)
            self._memory[:used].copy_(staging, non_blocking=True)
        size = step.num_rows
        ids, positions, qo_indptr, kv_indptr, last, slots, indices = self._inputs
        batch = Batch(
            qo_indptr[: size + 1],
            kv_indptr[: size + 1],
            indices,
            last[:size],
            slots[:size],
            self._block_size,
            host=step.batch(self._block_size),
            static=True,
        )
        return StepInput(ids[:size], positions[:size], batch)


class _Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph, hidden: Tensor) -> None:
        self.hidden = hidden
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


class CudaCapture:
    """A `Capture` by torch. All graphs share one pool of memory, as no two run at one time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Recording:
        main = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        main.wait_stream(side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # What other threads ask of the GPU meanwhile, as one of NCCL does, is no fault.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            hidden = run()
        return _Graph(graph, hidden)


def graphs_bytes(largest: int, next_one: int, count: int) -> int:
    """What `count` graphs take, by what the two largest took: the first one makes the pool, and the
    others add what is their own, the smaller ones no more than the second."""
    return largest + max(0, next_one) * (count - 1) if count else 0
