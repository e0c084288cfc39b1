"""Llama, Mistral, SmolLM2, Qwen2 and Qwen3: one decoder, over a ragged batch of tokens.

Rows of different requests lie one behind another without padding; only attention knows which is
whose, through the batch's index arrays. Arithmetic is left to the kernels and to matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from octavo.kernels.base import Batch, Kernels, Tape
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.adapters import Segment
from octavo.workers.models.buffers import Buffers, Widths
from octavo.workers.models.rotary import rotary_table
from octavo.workers.models.weights import Layer, Linear, Weights
from octavo.workers.parallel import Group, Shard

TAPED_TOKENS = 512  # passes of at most so many are recorded and played: Python takes long for them
ONE_TAPE_TOKENS = 128  # so many take no time worth a tick between layers
MOST_TAPED = 256  # numbers of tokens whose tapes are kept


class Llama:
    """One rank's share. `max_model_len` bounds the positions that will be seen."""

    recordable = True

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
        window = model.sliding_window
        self.window = window if window is not None and window < max_model_len else None
        self._widths = Widths(
            hidden=model.hidden_size,
            heads=len(shard.heads),
            kv_heads=len(shard.kv_heads),
            head_dim=model.head_dim,
            intermediate=len(shard.intermediate),
        )
        self._few = Buffers.make(TAPED_TOKENS, self._widths, weights.norm)
        self._tapes: dict[tuple[int, ...], list[Tape]] = {}
        self._logits = weights.norm.new_empty(0, weights.head.outputs)
        # Each layer ends by adding its output and norming for whatever follows it.
        self._next_norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.norm]

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
        tick: Callable[[], None],
        segments: Sequence[Segment] = (),
    ) -> Tensor:
        """Last hidden states `[tokens, hidden]`, normed, of int32 `[tokens]` ids and positions;
        valid until the next pass.

        Writes the tokens' keys and values into `cache`, the worker's whole tensor, and calls `tick`
        after each layer, or once where all are played from one tape. Two all-reduces a layer, and
        one for the embedding. `segments` have adapters; a pass with any is played from no tape.
        """
        tokens = len(ids)
        few = tokens <= TAPED_TOKENS and self.group.size == 1
        buffers = (
            self._few.first(tokens)
            if few
            else Buffers.make(tokens, self._widths, self.weights.norm)
        )
        self._embed(ids, buffers.residual)
        buffers.positions.copy_(positions)
        layers = cache.unbind(1)
        if few and not segments:
            self._play_layers(buffers, layers, batch, tick)
        else:
            self._layers(buffers, layers, batch, tick, range(len(layers)), segments)
        return buffers.normed

    def _play_layers(
        self, buffers: Buffers, cache: Sequence[Tensor], batch: Batch, tick: Callable[[], None]
    ) -> None:
        """All layers; the second time for a number of tokens, from tapes."""
        key = len(buffers.residual), cache[0].data_ptr(), torch.get_num_threads()
        if key not in self._tapes:
            if len(self._tapes) == MOST_TAPED:
                del self._tapes[next(iter(self._tapes))]
            self._tapes[key] = self._record_layers(buffers, cache, batch, tick)
        elif tapes := self._tapes[key]:
            for tape in tapes:
                tape.play(batch, cache[0])
                tick()
        else:
            self._layers(buffers, cache, batch, tick, range(len(cache)))

    def _record_layers(
        self, buffers: Buffers, cache: Sequence[Tensor], batch: Batch, tick: Callable[[], None]
    ) -> list[Tape]:
        """All layers. Gives their tapes, none where the kernels make none."""
        count = len(cache)
        at_once = count if len(buffers.residual) <= ONE_TAPE_TOKENS else 1
        tapes = []
        for first in range(0, count, at_once):
            part = range(first, first + at_once)
            tape = self.kernels.record(partial(self._layers, buffers, cache, batch, tick, part))
            if tape is not None:
                tapes.append(tape)
        return tapes if len(tapes) * at_once == count else []

    def _layers(
        self,
        buffers: Buffers,
        cache: Sequence[Tensor],
        batch: Batch,
        tick: Callable[[], None],
        part: range,
        segments: Sequence[Segment] = (),
    ) -> None:
        """Some of them. All go from `buffers.residual`, embedded tokens, to `buffers.normed`."""
        weights, eps = self.weights, self.model.rms_norm_eps
        kernels, group = self.kernels, self.group
        residual, normed, delta = buffers.residual, buffers.normed, buffers.delta
        if part.start == 0:
            kernels.rms_norm(residual, weights.layers[0].input_norm, eps, normed)
        for index in part:
            layer = weights.layers[index]
            self._attend(layer, buffers, cache[index], batch, segments, index)
            group.all_reduce(delta)
            kernels.add_rms_norm(delta, residual, layer.post_norm, eps, normed)
            self._feed_forward(layer, buffers, segments, index)
            group.all_reduce(delta)
            kernels.add_rms_norm(delta, residual, self._next_norms[index], eps, normed)
            tick()

    def logits(self, hidden: Tensor) -> Tensor | None:
        """`[rows, vocabulary]` of `[rows, hidden]` on rank 0, None on the others, in the weights'
        dtype: whatever reads more than their order wants them in float32. Valid until the next
        call."""
        rows = len(hidden)
        if rows > len(self._logits):  # kept, as fresh memory is slow to write for the first time
            self._logits = hidden.new_empty(rows, self.weights.head.outputs)
        part = self._logits[:rows]
        self.kernels.linear(hidden, self.weights.head, None, part)
        whole = self.group.gather_columns(part)
        return None if whole is None else whole[:, : self.model.vocab_size]

    def _embed(self, ids: Tensor, out: Tensor) -> None:
        if self.group.size == 1:
            torch.index_select(self.weights.embedding, 0, ids, out=out)
            return
        local = ids - self.shard.rank * self.shard.vocab_rows
        mine = (local >= 0) & (local < self.shard.vocab_rows)
        torch.index_select(self.weights.embedding, 0, local.where(mine, 0), out=out)
        out.masked_fill_(~mine[:, None], 0)
        self.group.all_reduce(out)

    def _attend(
        self,
        layer: Layer,
        buffers: Buffers,
        cache: Tensor,
        batch: Batch,
        segments: Sequence[Segment],
        index: int,
    ) -> None:
        kernels, eps = self.kernels, self.model.rms_norm_eps
        query, key, value = buffers.query, buffers.key, buffers.value
        self._project(buffers.normed, layer.qkv, buffers.qkv)
        for segment in segments:
            segment.add(kernels, segment.layers[index].qkv, buffers.normed, buffers.qkv)
        if layer.query_norm is not None and layer.key_norm is not None:
            kernels.rms_norm(query, layer.query_norm, eps, query)
            kernels.rms_norm(key, layer.key_norm, eps, key)
        kernels.rotary_write_kv(query, key, value, self.cos_sin, buffers.positions, cache, batch)
        kernels.attention(query, cache, batch, self.scale, buffers.attended, self.window)
        self._project(buffers.attended_flat, layer.output, buffers.delta)
        for segment in segments:
            update = segment.layers[index].output
            segment.add(kernels, update, buffers.attended_flat, buffers.delta)

    def _feed_forward(
        self, layer: Layer, buffers: Buffers, segments: Sequence[Segment], index: int
    ) -> None:
        kernels, gate_up, down = self.kernels, layer.gate_up, layer.down
        if not segments:
            kernels.feed_forward(
                buffers.normed,
                gate_up.weight,
                gate_up.bias,
                down.weight,
                down.bias,
                buffers.gate_up,
                buffers.gated,
                buffers.delta,
            )
            return
        self._project(buffers.normed, gate_up, buffers.gate_up)
        for segment in segments:  # they add to what the gate reads
            update = segment.layers[index].gate_up
            segment.add(kernels, update, buffers.normed, buffers.gate_up)
        kernels.silu_and_mul(buffers.gate_up, buffers.gated)
        self._project(buffers.gated, down, buffers.delta)
        for segment in segments:
            segment.add(kernels, segment.layers[index].down, buffers.gated, buffers.delta)

    def _project(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        self.kernels.linear(x, linear.weight, linear.bias, out)
