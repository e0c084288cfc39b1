"""The kernels for NVIDIA GPUs: FlashInfer's attention, cuBLAS's products by way of torch, and
Triton kernels of our own for the rest, and for attention where FlashInfer is missing or has none.

Sampling needs no kernels beyond these. `flashinfer.sampling` is not used: it numbers the random
streams of a batch by row, so a token would depend on its place in the batch, while ours depends on
seed and position alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.kernels.base import Batch, OneByOne, Packed
from octavo.kernels.cuda import blocks as moving
from octavo.kernels.cuda import levels, rows, store
from octavo.kernels.cuda.attend import TritonAttention
from octavo.kernels.cuda.plan import Planner, Shape
from octavo.kernels.packing import linear_plain, pack_plain
from octavo.kernels.quantized import quantize_plain

TO_COMPILE = (
    "see that nvcc of the CUDA that torch is built for, a C++ compiler and ninja are there, or "
    "install flashinfer-jit-cache"
)

log = logging.getLogger("octavo.kernels")


class CudaKernels(OneByOne):
    """float32, bfloat16 and float16. Cells lie as the reference's do, and as FlashInfer reads them.

    Raises ValueError or TypeError for tensors that do not fit together. What lies in the tensors is
    on the GPU and not looked at: blocks, slots and positions must be within bounds.
    """

    name = "cuda"

    def __init__(
        self, device: torch.device, flashinfer: Any = None, required: bool = False
    ) -> None:
        """`flashinfer` is the package, or None for attention by Triton alone. Where its kernels do
        not run, which shows when it is tried out for a model's first layer, Triton's take over with
        a warning; if it is `required`, RuntimeError is raised there. On a GPU, it is torch as a
        whole that is told to sum products in float32."""
        self._planner = None if flashinfer is None else Planner(flashinfer, device)
        self._required = required
        self._tried: set[Shape] = set()
        self._attention = TritonAttention()
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def begin_step(self, batch: Batch) -> None:
        if self._planner is not None:
            self._planner.begin(batch)

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, batch: Batch) -> None:
        store.store(key, value, cache, batch)

    def rotary_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
    ) -> None:
        store.turn_and_store(query, key, value, cos_sin, positions, cache, batch)

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        # FlashInfer would have a window in a plan of its own, for the layers that have it.
        if window is None and (planner := self._planner_for(Shape.of(query, cache, scale), batch)):
            planner.attend(query, cache, batch, scale, out)
        else:
            self._attention.attend(query, cache, batch, scale, out, window)

    def _planner_for(self, shape: Shape, batch: Batch) -> Planner | None:
        """FlashInfer's, where that has kernels for the shape and they run."""
        if self._planner is None or not shape.supported:
            return None
        if shape not in self._tried:
            self._tried.add(shape)
            try:
                self._planner.try_out(shape, batch.block_size)
            except (torch.OutOfMemoryError, torch.AcceleratorError):  # no fault of its kernels'
                raise
            except Exception as error:
                missing = f"flashinfer's kernels do not run here ({_reason(error)})"
                if self._required:
                    text = f"the native kernels were asked for, but {missing}; {TO_COMPILE}"
                    raise RuntimeError(text) from error
                log.debug("flashinfer", exc_info=error)
                log.warning(
                    "%s: attention runs on the slower Triton kernels; %s", missing, TO_COMPILE
                )
                self._planner = None
        return self._planner

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        moving.copy(cache, pairs)

    def gather_blocks(self, cache: Tensor, blocks: Tensor, out: Tensor) -> None:
        moving.gather(cache, blocks, out)

    def scatter_blocks(self, staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
        moving.scatter(staged, blocks, cache)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        rows.rms_norm(x, weight, eps, out)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        rows.add_rms_norm(x, residual, weight, eps, out)

    def pack(self, weight: Tensor, gated: bool = False) -> Packed:
        return pack_plain(weight)

    def quantize(self, weight: Tensor, gated: bool = False, form: str = "int8") -> Packed:
        return quantize_plain(weight, form)

    def linear(self, x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
        if weight.scales is None:
            linear_plain(x, weight, bias, out)
        else:
            levels.linear(x, weight, bias, out)

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        rows.silu_and_mul(gate_up, out)

    def argmax(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """By torch, whose argmax takes the first of equals, and a NaN for the largest."""
        indices = x.argmax(-1)
        return indices, x.gather(-1, indices[:, None])[:, 0].float()

    def record(self, calls: Callable[[], None]) -> None:
        calls()


def _reason(error: Exception) -> str:
    """A line for people: of what compilers say, the first that is about an error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error:" in line), lines[0]).strip()
