"""What a worker wants of a model, whoever defined it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from octavo.kernels.base import Batch, Kernels
from octavo.workers.models.adapters import Segment


class Model(Protocol):
    """One rank's share. If it is `recordable`, a pass can be made a CUDA graph."""

    kernels: Kernels
    recordable: bool

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
        tick: Callable[[], None],
        segments: Sequence[Segment] = (),
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states `[tokens, hidden]`, normed, of int32 `[tokens]` ids and positions, or
        of the tokens `wanted`, int64; valid until the next pass. Writes keys and values into
        `cache`, the worker's whole tensor, and calls `tick` now and then. `segments` have
        adapters."""

    def logits(self, hidden: Tensor) -> Tensor | None:
        """`[rows, vocabulary]` of `[rows, hidden]` on rank 0, None on the others. Valid until the
        next call."""
