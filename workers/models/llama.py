"""Llama, Mistral, SmolLM2, Qwen2 and Qwen3: one decoder, over a ragged batch of tokens.

Rows of different requests lie one behind another without padding; only attention knows which is
whose, through the batch's index arrays. Arithmetic is left to the kernels and to matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.base import Batch, Kernels
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.rotary import rotary_table
from octavo.workers.models.weights import Layer, Linear, Weights
from octavo.workers.parallel import Group, Shard


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What a layer writes and the next one overwrites."""

    normed: Tensor  # [tokens, hidden]: what the layer's halves read
    qkv: Tensor  # [tokens, heads + 2 * kv_heads, head_dim]
    attended: Tensor  # [tokens, heads, head_dim]
    gate_up: Tensor  # [tokens, 2 * intermediate]
    gated: Tensor  # [tokens, intermediate]
    delta: Tensor  # [tokens, hidden]: what a half adds to the residual


class Llama:
    """One rank's share. `max_model_len` bounds the positions that will be seen."""

    def __init__(
        self,
        model: ModelConfig,
        shard: Shard,
        weights: Weights,
        kernels: Kernels,
        group: Group,
        max_model_len: int,
    ) -> None:
        self.model = model
        self.shard = shard
        self.weights = weights
        self.kernels = kernels
        self.group = group
        self.cos_sin = rotary_table(model, max_model_len).to(weights.norm.device)
        self.scale = model.head_dim**-0.5
        self._heads, self._kv_heads = len(shard.heads), len(shard.kv_heads)
        # Each layer ends by adding its output and norming for whatever follows it.
        self._next_norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.norm]

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
        tick: Callable[[], None],
    ) -> Tensor:
        """Last hidden states `[tokens, hidden]`, normed, of int32 `[tokens]` ids and positions.

        Writes the tokens' keys and values into `cache`, the worker's whole tensor, and calls `tick`
        after each layer. Two all-reduces a layer, and one for the embedding.
        """
        weights, eps = self.weights, self.model.rms_norm_eps
        kernels, group = self.kernels, self.group
        residual = self._embed(ids)
        buffers = self._buffers(residual)
        normed, delta = buffers.normed, buffers.delta
        kernels.rms_norm(residual, weights.layers[0].input_norm, eps, normed)
        for layer, layer_cache, next_norm in zip(
            weights.layers, cache.unbind(1), self._next_norms, strict=True
        ):
            self._attend(layer, buffers, positions, layer_cache, batch)
            group.all_reduce(delta)
            kernels.add_rms_norm(delta, residual, layer.post_norm, eps, normed)
            self._feed_forward(layer, buffers)
            group.all_reduce(delta)
            kernels.add_rms_norm(delta, residual, next_norm, eps, normed)
            tick()
        return normed

    def logits(self, hidden: Tensor) -> Tensor | None:
        """float32 `[rows, vocabulary]` of `[rows, hidden]` on rank 0, None on the others."""
        part = hidden.new_empty(len(hidden), self.weights.head.outputs)
        self.kernels.linear(hidden, self.weights.head, None, part)
        whole = self.group.gather_columns(part)
        return None if whole is None else whole[:, : self.model.vocab_size].float()

    def _embed(self, ids: Tensor) -> Tensor:
        if self.group.size == 1:
            return F.embedding(ids, self.weights.embedding)
        local = ids - self.shard.rank * self.shard.vocab_rows
        mine = (local >= 0) & (local < self.shard.vocab_rows)
        embedded = F.embedding(local.where(mine, 0), self.weights.embedding)
        embedded.masked_fill_(~mine[:, None], 0)
        self.group.all_reduce(embedded)
        return embedded

    def _buffers(self, residual: Tensor) -> _Buffers:
        tokens, dim = len(residual), self.model.head_dim
        heads, width = self._heads, len(self.shard.intermediate)
        return _Buffers(
            normed=torch.empty_like(residual),
            qkv=residual.new_empty(tokens, heads + 2 * self._kv_heads, dim),
            attended=residual.new_empty(tokens, heads, dim),
            gate_up=residual.new_empty(tokens, 2 * width),
            gated=residual.new_empty(tokens, width),
            delta=torch.empty_like(residual),
        )

    def _attend(
        self, layer: Layer, buffers: _Buffers, positions: Tensor, cache: Tensor, batch: Batch
    ) -> None:
        kernels, eps = self.kernels, self.model.rms_norm_eps
        heads, kv_heads, out = self._heads, self._kv_heads, buffers.attended
        self._project(buffers.normed, layer.qkv, buffers.qkv.flatten(1))
        query, key, value = torch.split(buffers.qkv, [heads, kv_heads, kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            kernels.rms_norm(query, layer.query_norm, eps, query)
            kernels.rms_norm(key, layer.key_norm, eps, key)
        kernels.rotary(query, key, self.cos_sin, positions)
        kernels.write_kv(key, value, cache, batch)
        kernels.attention(query, cache, batch, self.scale, out)
        self._project(out.flatten(1), layer.output, buffers.delta)

    def _feed_forward(self, layer: Layer, buffers: _Buffers) -> None:
        self._project(buffers.normed, layer.gate_up, buffers.gate_up)
        self.kernels.silu_and_mul(buffers.gate_up, buffers.gated)
        self._project(buffers.gated, layer.down, buffers.delta)

    def _project(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        self.kernels.linear(x, linear.weight, linear.bias, out)
