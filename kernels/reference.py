"""Plain torch, written to be read: the right answers that every other implementation must give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.kernels.base import Batch, OneByOne, Packed
from octavo.kernels.packing import linear_plain, pack_plain
from octavo.kernels.quantized import narrowed, quantize_plain


class ReferenceKernels(OneByOne):
    """Gathers each row's keys and values and runs textbook attention in float32."""

    name = "reference"

    def begin_step(self, batch: Batch) -> None:
        """Nothing to prepare."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, batch: Batch) -> None:
        slots = batch.slots.long()
        block, offset = slots // batch.block_size, slots % batch.block_size
        cache[block, 0, :, offset] = narrowed(key, cache.dtype)
        cache[block, 1, :, offset] = narrowed(value, cache.dtype)

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
        cos, sin = cos_sin[positions.long()][:, :, None].unbind(1)  # [tokens, 1, dim / 2] each
        for x in (query, key):
            first, second = x.float().chunk(2, dim=-1)
            x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
        self.write_kv(key, value, cache, batch)

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        group = query.shape[1] // cache.shape[2]
        qo, kv = batch.qo_indptr.tolist(), batch.kv_indptr.tolist()
        for row, last in enumerate(batch.kv_last_page_len.tolist()):
            blocks = batch.kv_indices[kv[row] : kv[row + 1]].long()
            length = (len(blocks) - 1) * batch.block_size + last
            # [blocks, heads, block_size, dim] -> [heads, length, dim]
            k, v = (
                cache[blocks, i].transpose(0, 1).flatten(1, 2)[:, :length].float() for i in (0, 1)
            )
            q = query[qo[row] : qo[row + 1]].transpose(0, 1).float()  # [heads, queries, dim]
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            scores = (q @ k.transpose(1, 2)) * scale
            queries = q.shape[1]
            position = torch.arange(length - queries, length, device=q.device)
            age = position[:, None] - torch.arange(length, device=q.device)[None, :]
            unseen = age < 0 if window is None else (age < 0) | (age >= window)
            weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
            out[qo[row] : qo[row + 1]] = (weights @ v).transpose(0, 1).to(out.dtype)

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        cache[pairs[:, 1]] = cache[pairs[:, 0]]

    def gather_blocks(self, cache: Tensor, blocks: Tensor, out: Tensor) -> None:
        out.copy_(cache[blocks])

    def scatter_blocks(self, staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
        cache[blocks] = staged

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        out.copy_(normed.to(x.dtype).float() * weight.float())

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        residual.add_(x)
        self.rms_norm(residual, weight, eps, out)

    def pack(self, weight: Tensor, gated: bool = False) -> Packed:
        return pack_plain(weight)

    def quantize(self, weight: Tensor, gated: bool = False, form: str = "int8") -> Packed:
        return quantize_plain(weight, form)

    def linear(self, x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
        linear_plain(x, weight, bias, out)

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        gate, up = gate_up.float().chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    def argmax(self, x: Tensor) -> tuple[Tensor, Tensor]:
        largest = x.max(-1).values[:, None]
        there = x.isnan() | (x == largest)
        return there.to(torch.uint8).argmax(-1), largest[:, 0].float()

    def record(self, calls: Callable[[], None]) -> None:
        calls()
