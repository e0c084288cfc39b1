"""The activations of one forward pass: what a layer writes and the next one overwrites."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Widths:
    """What one rank computes a token: heads of queries and of keys, and features."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Buffers:
    """Views are made once a pass, not a layer: `query` to `value` lie in `qkv`."""

    positions: Tensor  # int32 [tokens]
    residual: Tensor  # [tokens, hidden]
    normed: Tensor  # [tokens, hidden]: what the layer's halves read, in the end the result
    qkv: Tensor  # [tokens, (heads + 2 * kv_heads) * head_dim]
    query: Tensor  # [tokens, heads, head_dim]
    key: Tensor  # [tokens, kv_heads, head_dim]
    value: Tensor  # [tokens, kv_heads, head_dim]
    attended: Tensor  # [tokens, heads, head_dim]
    attended_flat: Tensor  # [tokens, heads * head_dim]: the same memory
    gate_up: Tensor  # [tokens, 2 * intermediate]
    gated: Tensor  # [tokens, intermediate]
    delta: Tensor  # [tokens, hidden]: what a half adds to the residual

    @classmethod
    def make(cls, tokens: int, widths: Widths, like: Tensor) -> Buffers:
        """Uninitialised, of the device and dtype of `like`."""
        dim, heads, kv_heads = widths.head_dim, widths.heads, widths.kv_heads
        qkv = like.new_empty(tokens, (heads + 2 * kv_heads) * dim)
        parts = qkv.view(tokens, -1, dim)
        query, key, value = torch.split(parts, [heads, kv_heads, kv_heads], dim=1)
        attended = like.new_empty(tokens, heads, dim)
        return cls(
            positions=like.new_empty(tokens, dtype=torch.int32),
            residual=like.new_empty(tokens, widths.hidden),
            normed=like.new_empty(tokens, widths.hidden),
            qkv=qkv,
            query=query,
            key=key,
            value=value,
            attended=attended,
            attended_flat=attended.flatten(1),
            gate_up=like.new_empty(tokens, 2 * widths.intermediate),
            gated=like.new_empty(tokens, widths.intermediate),
            delta=like.new_empty(tokens, widths.hidden),
        )

    def first(self, tokens: int) -> Buffers:
        """The same memory, for so many tokens."""
        return Buffers(*(getattr(self, name)[:tokens] for name in self.__dataclass_fields__))
