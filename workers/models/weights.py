"""The tensors of one rank's share of a Llama-family model, and where a checkpoint keeps them.

Projections that read the same input are fused while loading: query, key and value; gate and up.
Each is packed for the kernels as soon as it is whole, so that no more than one is held twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.base import Kernels, Packed
from octavo.workers.loader import Checkpoint
from octavo.workers.model_config import ModelConfig
from octavo.workers.parallel import Shard

ROTARY_BUFFER = "rotary_emb.inv_freq"  # old checkpoints carry it; it is computed here


@dataclass(frozen=True, slots=True)
class Linear:
    """`bias` is None where there is none, or where rank 0 adds it."""

    weight: Packed
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [vocab rows of this rank, hidden]
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Packed  # of `embedding` where they are tied: looking up takes the plain rows


def load_weights(
    model: ModelConfig,
    shard: Shard,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    quantization: str | None = None,
    fuse_gate: bool = True,
) -> Weights:
    """With `quantization`, the layers' products have weights of that form. Without `fuse_gate`, the
    product of gate and up can also be had by itself. Raises `InvalidRequest` naming a tensor that
    is missing, misshapen or not explained."""
    reader = _Reader(model, shard, checkpoint, dtype, device, kernels, quantization, fuse_gate)
    embedding = reader.vocab_rows("model.embed_tokens.weight")
    layers = tuple(reader.layer(index) for index in range(model.num_layers))
    norm = reader.whole("model.norm.weight", model.hidden_size)
    # The head is never quantized: no later layer evens out its errors, which can change the token
    # at once, and where it is tied to the embedding the plain rows must stay in memory anyway.
    if model.tie_word_embeddings:
        checkpoint.finish((ROTARY_BUFFER, "lm_head.weight"))
        return Weights(embedding, layers, norm, kernels.pack(embedding))
    head = kernels.pack(reader.vocab_rows("lm_head.weight"))
    checkpoint.finish((ROTARY_BUFFER,))
    return Weights(embedding, layers, norm, head)


@dataclass(frozen=True, slots=True)
class _Reader:
    model: ModelConfig
    shard: Shard
    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    quantization: str | None
    fuse_gate: bool

    def layer(self, index: int) -> Layer:
        model, shard = self.model, self.shard
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        hidden, dim, width = model.hidden_size, model.head_dim, model.intermediate_size
        heads = (model.num_heads * dim, _rows(shard.heads, dim))
        kv_heads = (model.num_kv_heads * dim, _rows(shard.kv_heads, dim))
        inner = (width, shard.intermediate)
        qk_norm = model.qk_norm
        return Layer(
            input_norm=self.whole(prefix + "input_layernorm.weight", hidden),
            qkv=self.columns(
                [
                    (attention + "q_proj", *heads),
                    (attention + "k_proj", *kv_heads),
                    (attention + "v_proj", *kv_heads),
                ],
                hidden,
                model.qkv_bias,
            ),
            query_norm=self.whole(attention + "q_norm.weight", dim) if qk_norm else None,
            key_norm=self.whole(attention + "k_norm.weight", dim) if qk_norm else None,
            output=self.rows(attention + "o_proj", *heads, model.output_bias),
            post_norm=self.whole(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self.columns(
                [(prefix + "mlp.gate_proj", *inner), (prefix + "mlp.up_proj", *inner)],
                hidden,
                model.mlp_bias,
                gated=self.fuse_gate,
            ),
            down=self.rows(prefix + "mlp.down_proj", *inner, model.mlp_bias),
        )

    def columns(
        self,
        parts: Sequence[tuple[str, int, range]],
        inputs: int,
        has_bias: bool,
        gated: bool = False,
    ) -> Linear:
        """Column-parallel: this rank's output features of several projections, one below another.
        Each part is a name, its outputs over all ranks, and those of this rank. If `gated`, the
        first is the gate of the second."""
        outputs = sum(len(share) for _, _, share in parts)
        weight = self.empty(outputs, inputs)
        bias = self.empty(outputs) if has_bias else None
        at = 0
        for name, whole, share in parts:
            rows = slice(at, at + len(share))
            at += len(share)
            self.checkpoint.read_into(weight[rows], name + ".weight", (whole, inputs), share)
            if bias is not None:
                self.checkpoint.read_into(bias[rows], name + ".bias", (whole,), share)
        return Linear(self.packed(weight, gated), bias)

    def rows(self, name: str, inputs: int, share: range, has_bias: bool) -> Linear:
        """Row-parallel: this rank's input features. The sum over ranks must hold the bias once."""
        outputs = self.model.hidden_size
        weight = self.empty(outputs, len(share))
        self.checkpoint.read_into(weight, name + ".weight", (outputs, inputs), share, dim=1)
        packed = self.packed(weight)
        if not has_bias:
            return Linear(packed, None)
        bias = self.whole(name + ".bias", outputs)
        return Linear(packed, bias if self.shard.rank == 0 else None)

    def packed(self, weight: Tensor, gated: bool = False) -> Packed:
        """A layer's weight for the kernels. Each rank quantizes what it holds: of a weight that is
        divided by inputs, each rank's part has scales of its own, and is a little more exact."""
        if self.quantization is None:
            return self.kernels.pack(weight, gated)
        return self.kernels.quantize(weight, gated, self.quantization)

    def vocab_rows(self, name: str) -> Tensor:
        share = self.shard.vocab
        shape = (self.model.vocab_size, self.model.hidden_size)
        weight = torch.zeros(
            self.shard.vocab_rows, shape[1], dtype=self.dtype, device=self.device
        )  # rows beyond the vocabulary stay zero
        self.checkpoint.read_into(weight[: len(share)], name, shape, share)
        return weight

    def whole(self, name: str, length: int) -> Tensor:
        vector = self.empty(length)
        self.checkpoint.read_into(vector, name, (length,), range(length))
        return vector

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device)


def _rows(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
