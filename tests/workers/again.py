"""What stands for CUDA's graphs on the CPU: the same calls, made again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.workers.batch import StepInput
from octavo.workers.graphs import DecodeGraphs
from octavo.workers.worker import Worker


class Again:
    """A `Recording`; and, as it is called with what is to be recorded, its own `Capture`."""

    replays = 0

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run = run
        self.hidden = run().clone()

    def replay(self) -> None:
        Again.replays += 1
        self.hidden.copy_(self._run())


def give_graphs(worker: Worker, sizes: tuple[int, ...]) -> None:
    """Has a worker whose cache is allocated play its decode steps of up to so many rows."""
    cache, model = worker._cache, worker._model
    assert cache is not None and model is not None

    def forward(step: StepInput) -> Tensor:
        return model.forward(step.ids, step.positions, cache, step.batch, lambda: None)

    size = worker.config.block_size
    blocks = -(-worker.max_model_len // size)
    graphs = DecodeGraphs(sizes, blocks, size, worker.device, worker.kernels, Again)
    with torch.inference_mode():
        graphs.record(forward)
    worker._graphs = graphs
