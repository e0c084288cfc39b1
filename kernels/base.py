"""The kernel contract: FlashInfer's index arrays over a block-major HND cache.

A cache is one tensor `[num_blocks, num_layers, 2, kv_heads, block_size, head_dim]`; kernels get a
layer's strided view `cache[:, layer]` of shape `[num_blocks, 2, kv_heads, block_size, head_dim]`.
What is inside a (layer, K or V, head) cell belongs to the implementation: everyone else treats a
block as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged batch of `num_rows` rows and `num_tokens` query tokens; all tensors int32.

    Row r owns query tokens `qo_indptr[r] : qo_indptr[r + 1]`, which are the last ones of its
    context, and blocks `kv_indices[kv_indptr[r] : kv_indptr[r + 1]]`, the last of which holds
    `kv_last_page_len[r]` tokens (queries included). `slots[t]` = block * block_size + offset is
    where query token t's key and value go.

    On a GPU, `host` has the same arrays in CPU memory, so that planning waits for nothing. With
    `static`, the tensors are those of a graph: one token a row, always in the same place, with
    other content each step; `kv_indices` is longer than what is used. Rows that only fill such a
    batch up read and write the first slot of the null block.
    """

    qo_indptr: Tensor  # [num_rows + 1]
    kv_indptr: Tensor  # [num_rows + 1]
    kv_indices: Tensor  # [sum of blocks]
    kv_last_page_len: Tensor  # [num_rows]
    slots: Tensor  # [num_tokens]
    block_size: int
    host: Batch | None = None
    static: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight `[outputs, inputs]` of `dtype` as `Kernels.pack` or `Kernels.quantize` made it.

    `panels` is what an implementation's own products read, and its inside belongs to it; `plain`
    is the weight itself, where torch's product is needed. One of them may be None. With `scales`,
    float32 `[outputs]`, both hold levels of a byte: a weight is its level times its output's scale.
    With `gated`, panels are in an order that serves `Kernels.gated_linear` alone.
    """

    outputs: int
    inputs: int
    dtype: torch.dtype
    plain: Tensor | None
    panels: Tensor | None = None
    scales: Tensor | None = None
    gated: bool = False


class Tape(Protocol):
    """Kernel calls that were recorded, in order, on tensors that stay where they are."""

    def play(self, batch: Batch, cache: Tensor) -> None:
        """Makes all of them again, on what the tensors hold now, with this `batch` in the place of
        the recorded one. `cache` is any layer's view."""


class Kernels(Protocol):
    """One device's implementation. Every method is deterministic and ignores batch composition:
    a row's result is the same bits alone or among others. Only matrix products that are left to
    torch (`Packed.plain`) don't promise that: theirs may differ with the number of rows."""

    name: str

    def begin_step(self, batch: Batch) -> None:
        """Called once a step, before the layers and outside of graphs, with the batch that the
        other calls will get; for a `static` one, also before the calls are captured, and each
        replay. What is left in host memory for the device stays untouched until the device has
        taken it: the caller sees that it has before the next call."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, batch: Batch) -> None:
        """Stores `[num_tokens, kv_heads, head_dim]` keys and values into a layer's cache view. A
        cache may be of FP8 (e4m3) on GPUs: numbers beyond 448 become that."""

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
        """Turns `[num_tokens, heads, dim]` queries and `[num_tokens, kv_heads, dim]` keys in place
        (halves, not pairs, are turned together), then does as `write_kv`. `cos_sin` is float32
        `[max_len, 2, dim / 2]`, `positions` int32 `[num_tokens]`."""

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        """Causal attention of `[num_tokens, heads, head_dim]` queries over their rows' contexts,
        into `out` of the same shape. float32 accumulation; heads % kv_heads == 0, `scale` > 0. With
        a `window`, a query sees only the last so many tokens, its own among them."""

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        """Copies whole blocks of `[num_blocks, ...]` by `[n, 2]` int64 (source, target) pairs.
        No target is another pair's source."""

    def gather_blocks(self, cache: Tensor, blocks: Tensor, out: Tensor) -> None:
        """Blocks `[n]`, int64, of `[num_blocks, ...]` into `[n, ...]`, in this order."""

    def scatter_blocks(self, staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
        """The i-th of `[n, ...]` into block `blocks[i]` of `[num_blocks, ...]`. No block comes
        twice."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """`out = x / sqrt(mean(x^2) + eps) * weight` over the last axis of `[rows, width]` or
        `[tokens, heads, width]`. Views with a contiguous last axis will do; `out` may be `x`."""

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        """`residual += x` in place, then `out = rms_norm(residual)`; all `[rows, width]`."""

    def pack(self, weight: Tensor, gated: bool = False) -> Packed:
        """The weight `[outputs, inputs]` in the form that `linear` reads, or `gated_linear`, made
        once, when a model is loaded. It may be `weight` itself, which must not be written to
        afterwards."""

    def quantize(self, weight: Tensor, gated: bool = False, form: str = "int8") -> Packed:
        """As `pack`, but rounded to int8: an output's weights are whole multiples, -127 to 127, of
        a scale of its own, by which the largest of them is 127. In the `form` fp8 they are FP8
        multiples (e4m3), of which the largest is 448."""

    def linear(self, x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
        """`out = x @ weight^T + bias` for `[rows, inputs]` and `[outputs]`, into
        `[rows, outputs]`, all of the weight's dtype. Sums are float32; each output is one chain of
        sums over the inputs in order, then scaled if the weight is, with the bias added last, for
        any number of rows."""

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """`out = silu(gate) * up` for `[rows, 2 * width]` holding gate, then up."""

    def gated_linear(
        self, x: Tensor, weight: Packed, bias: Tensor | None, gate_up: Tensor, out: Tensor
    ) -> None:
        """`silu_and_mul` of what `linear` makes of `x`, the same bits, by a weight that was packed
        for it. `gate_up`, `[rows, outputs]`, is room for the product."""

    def feed_forward(
        self,
        x: Tensor,
        gate_up: Packed,
        gate_up_bias: Tensor | None,
        down: Packed,
        down_bias: Tensor | None,
        wide: Tensor,
        gated: Tensor,
        out: Tensor,
    ) -> None:
        """`linear` by `down` of what `gated_linear` makes of `x`, the same bits. `wide` and `gated`
        are room for what lies between, and what is in them afterwards means nothing."""

    def argmax(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row of `[rows, width]`, contiguous within rows: the index of the first of its
        largest numbers, int64 `[rows]`, and that number, float32 `[rows]`. A NaN is above all."""

    def record(self, calls: Callable[[], None]) -> Tape | None:
        """Runs `calls`, which calls kernels and nothing else that matters. A tape plays them again
        much sooner; None where that would not repeat everything. Whoever keeps a tape keeps the
        tensors that its calls were given."""


class OneByOne(Kernels, Protocol):
    """Kernels that gain nothing by joining a feed-forward layer's products."""

    def gated_linear(
        self, x: Tensor, weight: Packed, bias: Tensor | None, gate_up: Tensor, out: Tensor
    ) -> None:
        self.linear(x, weight, bias, gate_up)
        self.silu_and_mul(gate_up, out)

    def feed_forward(
        self,
        x: Tensor,
        gate_up: Packed,
        gate_up_bias: Tensor | None,
        down: Packed,
        down_bias: Tensor | None,
        wide: Tensor,
        gated: Tensor,
        out: Tensor,
    ) -> None:
        self.gated_linear(x, gate_up, gate_up_bias, wide, gated)
        self.linear(gated, down, down_bias, out)


def cache_shape(
    num_blocks: int, num_layers: int, kv_heads: int, block_size: int, head_dim: int
) -> tuple[int, ...]:
    """Shape of a worker's whole cache tensor; axis 2 is K, V."""
    return (num_blocks, num_layers, 2, kv_heads, block_size, head_dim)


def block_bytes(
    num_layers: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> int:
    """Bytes of one block over all layers, K and V."""
    return num_layers * 2 * kv_heads * block_size * head_dim * dtype.itemsize
