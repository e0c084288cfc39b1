"""LoRA adapters beside a model's weights, for some of a batch's tokens each.

What the model fuses is fused here too: the A of query, key and value lie one below another, and
their B in a block diagonal, so that an adapter adds two small products to each of a layer's four.
They are the kernels' own, so a row's result does not depend on what it is batched with.

Sharded as the projections are (Megatron): where outputs are divided among ranks, B's rows are and A
is whole; where inputs are, A's columns are and B is whole, and the sum over ranks that follows adds
up the adapter's part too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from octavo.kernels.base import Kernels, Packed
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Work
from octavo.workers.adapter_files import AdapterFile, a_of, b_of
from octavo.workers.model_config import ModelConfig
from octavo.workers.parallel import Shard
from octavo.workers.upload import upload


@dataclass(frozen=True, slots=True)
class LowRank:
    """`up(down(x))` is added to a product: `[ranks, inputs]`, and `[outputs, ranks]`, scaled."""

    down: Packed
    up: Packed


@dataclass(frozen=True, slots=True)
class LayerUpdates:
    """What one adapter adds to a layer's products; None where it adds nothing."""

    qkv: LowRank | None
    output: LowRank | None
    gate_up: LowRank | None
    down: LowRank | None


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of a batch that have one adapter: int64 places, None for all of them."""

    layers: Sequence[LayerUpdates]
    tokens: Tensor | None

    def add(self, kernels: Kernels, update: LowRank | None, x: Tensor, out: Tensor) -> None:
        """Adds to `out`, `[tokens, outputs]`, what the adapter makes of `x`, `[tokens, inputs]`."""
        if update is None:
            return
        own = x if self.tokens is None else x.index_select(0, self.tokens)
        low = own.new_empty(len(own), update.down.outputs)
        kernels.linear(own, update.down, None, low)
        high = own.new_empty(len(own), update.up.outputs)
        kernels.linear(low, update.up, None, high)
        if self.tokens is None:
            out.add_(high)
        else:
            out.index_add_(0, self.tokens, high)


class Adapters:
    """Those of one rank, by name."""

    def __init__(
        self, device: torch.device, loaded: Mapping[str, Sequence[LayerUpdates]] | None = None
    ) -> None:
        self._device = device
        self._loaded = loaded or {}

    def segments(self, work: Sequence[Work], rows: Mapping[int, Row]) -> tuple[Segment, ...]:
        """Those of a step's tokens, in plan order, whose rows have adapters."""
        if not self._loaded:
            return ()
        places: dict[str, list[int]] = {}
        first = 0
        for item in work:
            if item.count and (name := rows[item.row].adapter):
                places.setdefault(name, []).extend(range(first, first + item.count))
            first += item.count
        whole = any(len(each) == first for each in places.values())
        return tuple(
            Segment(self._loaded[name], None if whole else self._upload(each))
            for name, each in places.items()
        )

    def _upload(self, places: list[int]) -> Tensor:
        (tensor,) = upload([np.array(places, np.int64)], self._device)
        return tensor


def load_adapters(
    files: Sequence[AdapterFile],
    model: ModelConfig,
    shard: Shard,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
) -> Adapters:
    """This rank's share of adapters that were found to fit the model."""
    loaded = {}
    for each in files:
        with safe_open(each.weights, framework="pt") as file:
            reader = _Reader(file, each, model, shard, dtype, device, kernels)
            loaded[each.name] = [reader.layer(index) for index in range(model.num_layers)]
    return Adapters(device, loaded)


@dataclass(frozen=True, slots=True)
class _Reader:
    file: Any
    adapter: AdapterFile
    model: ModelConfig
    shard: Shard
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels

    def layer(self, index: int) -> LayerUpdates:
        attention = f"model.layers.{index}.self_attn."
        mlp = f"model.layers.{index}.mlp."
        shard, dim = self.shard, self.model.head_dim
        hidden = range(self.model.hidden_size)
        heads, kv_heads = _features(shard.heads, dim), _features(shard.kv_heads, dim)
        inner = shard.intermediate
        return LayerUpdates(
            qkv=self.update(
                [
                    (attention + "q_proj", heads),
                    (attention + "k_proj", kv_heads),
                    (attention + "v_proj", kv_heads),
                ],
                hidden,
            ),
            output=self.update([(attention + "o_proj", hidden)], heads),
            gate_up=self.update([(mlp + "gate_proj", inner), (mlp + "up_proj", inner)], hidden),
            down=self.update([(mlp + "down_proj", hidden)], inner),
        )

    def update(self, parts: Sequence[tuple[str, range]], inputs: range) -> LowRank | None:
        """Of projections that read the same `inputs`, whose outputs lie one behind another: each a
        name and which of its outputs this rank has."""
        updates = self.adapter.updates
        ranks = sum(updates[name].rank for name, _ in parts if name in updates)
        if not ranks:
            return None
        outputs = sum(len(share) for _, share in parts)
        down = torch.empty(ranks, len(inputs), dtype=self.dtype, device=self.device)
        up = torch.zeros(outputs, ranks, dtype=self.dtype, device=self.device)
        row = column = 0
        for name, share in parts:
            if (update := updates.get(name)) is not None:
                columns = slice(column, column + update.rank)
                a = self.file.get_slice(a_of(name))[:, inputs.start : inputs.stop]
                b = self.file.get_slice(b_of(name))[share.start : share.stop]
                down[columns].copy_(a)
                up[row : row + len(share), columns].copy_(b.float() * update.scale)
                column += update.rank
            row += len(share)
        return LowRank(self.kernels.pack(down), self.kernels.pack(up))


def _features(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
