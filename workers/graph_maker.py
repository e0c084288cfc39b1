"""Which graphs a worker has, and their making: once in earnest, and before that on trial, to see
what memory they take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.workers.batch import StepInput
from octavo.workers.cache import Layout
from octavo.workers.config import WorkerConfig
from octavo.workers.gpu_memory import Trial
from octavo.workers.graphs import CudaCapture, DecodeGraphs
from octavo.workers.ladder import ladder
from octavo.workers.models.model import Model

ON_THE_HOST = ("torch", "reference")  # kernels that look into a batch, and cannot be recorded


class GraphMaker:
    """Of no size on a CPU, or where the user or the kernels want no graphs. Every rank of a group
    must make its own at the same time: recording a step runs it."""

    def __init__(
        self,
        config: WorkerConfig,
        max_model_len: int,
        layout: Layout,
        model: Model,
        device: torch.device,
    ) -> None:
        self._max_model_len = max_model_len
        self._layout = layout
        self._model = model
        self._device = device
        self.sizes: tuple[int, ...] = ()
        recordable = model.recordable and model.kernels.name not in ON_THE_HOST
        if device.type != "cpu" and recordable and not config.enforce_eager:
            rows = min(config.max_num_seqs, config.max_num_batched_tokens)
            self.sizes = ladder(config.cuda_graph_sizes, rows)

    def make(self, cache: Tensor) -> DecodeGraphs | None:
        """Graphs of all sizes over `cache`."""
        if not self.sizes:
            return None
        graphs = self._new()
        self._record(graphs, cache, self.sizes)
        return graphs

    def trial(self) -> Trial:
        """Graphs over a cache of the null block alone."""
        made: list[tuple[DecodeGraphs, Tensor]] = []

        def record(size: int) -> None:
            if not made:
                made.append((self._new(), self._layout.allocate(1, self._device)))
            self._record(*made[0], [size])

        return Trial(self.sizes, record, made.clear)

    def _new(self) -> DecodeGraphs:
        size = self._layout.block_size
        row_blocks = -(-self._max_model_len // size)
        capture = CudaCapture(self._device)
        return DecodeGraphs(
            self.sizes, row_blocks, size, self._device, self._model.kernels, capture
        )

    def _record(self, graphs: DecodeGraphs, cache: Tensor, sizes: Sequence[int]) -> None:
        def forward(step: StepInput) -> Tensor:
            return self._model.forward(step.ids, step.positions, cache, step.batch, lambda: None)

        with torch.inference_mode():
            graphs.record(forward, sizes)
