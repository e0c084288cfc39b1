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
MOST_TAPED = 256  # numbers of tokens, with or without the last layer's end, whose tapes are kept


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
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See `Model`. `tick` is called after each layer, or once where all are played from one
        tape. Two all-reduces a layer, and one for the embedding. A pass with `segments` is played
        from no tape. Of the last layer, all that follows attention is computed for the tokens
        `wanted` alone.
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
        whole = wanted is None or len(segments) > 0
        if few and not segments:
            self._play_layers(buffers, layers, batch, tick, whole)
        else:
            self._layers(buffers, layers, batch, tick, range(len(layers)), whole, segments)
        if wanted is None:
            return buffers.normed
        if whole:
            return buffers.normed.index_select(0, wanted)
        return self._end(buffers, wanted)

    def _end(self, buffers: Buffers, wanted: Tensor) -> Tensor:
        """What follows the last layer's attention, for some tokens."""
        if len(wanted) == 0:
            return buffers.normed[:0]
        some = Buffers.make(len(wanted), self._widths, self.weights.norm)
        torch.index_select(buffers.attended_flat, 0, wanted, out=some.attended_flat)
        torch.index_select(buffers.residual, 0, wanted, out=some.residual)
        self._after_attention(some, len(self.weights.layers) - 1)
        return some.normed

    def _play_layers(
        self,
        buffers: Buffers,
        cache: Sequence[Tensor],
        batch: Batch,
        tick: Callable[[], None],
        whole: bool,
    ) -> None:
        """All layers; the second time for a number of tokens, from tapes."""
        key = len(buffers.residual), cache[0].data_ptr(), torch.get_num_threads(), whole
        if key not in self._tapes:
            if len(self._tapes) == MOST_TAPED:
                del self._tapes[next(iter(self._tapes))]
            self._tapes[key] = self._record_layers(buffers, cache, batch, tick, whole)
        elif tapes := self._tapes[key]:
            for tape in tapes:
                tape.play(batch, cache[0])
                tick()
        else:
            self._layers(buffers, cache, batch, tick, range(len(cache)), whole)

    def _record_layers(
        self,
        buffers: Buffers,
        cache: Sequence[Tensor],
        batch: Batch,
        tick: Callable[[], None],
        whole: bool,
    ) -> list[Tape]:
        """All layers. Gives their tapes, none where the kernels make none."""
        count = len(cache)
        at_once = count if len(buffers.residual) <= ONE_TAPE_TOKENS else 1
        tapes = []
        for first in range(0, count, at_once):
            part = range(first, first + at_once)
            layers = partial(self._layers, buffers, cache, batch, tick, part, whole)
            tape = self.kernels.record(layers)
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
        whole: bool,
        segments: Sequence[Segment] = (),
    ) -> None:
        """Some of them. All go from `buffers.residual`, embedded tokens, to `buffers.normed`, or if
        not `whole`, to the last one's attention."""
        layers, eps = self.weights.layers, self.model.rms_norm_eps
        if part.start == 0:
            self.kernels.rms_norm(buffers.residual, layers[0].input_norm, eps, buffers.normed)
        for index in part:
            self._attend(layers[index], buffers, cache[index], batch, segments, index)
            if whole or index + 1 < len(layers):
                self._after_attention(buffers, index, segments)
            tick()

    def _after_attention(
        self, buffers: Buffers, index: int, segments: Sequence[Segment] = ()
    ) -> None:
        """The rest of a layer, whose rows are independent."""
        layer, eps = self.weights.layers[index], self.model.rms_norm_eps
        kernels, group = self.kernels, self.group
        residual, normed, delta = buffers.residual, buffers.normed, buffers.delta
        self._project(buffers.attended_flat, layer.output, delta)
        for segment in segments:
            segment.add(kernels, segment.layers[index].output, buffers.attended_flat, delta)
        group.all_reduce(delta)
        kernels.add_rms_norm(delta, residual, layer.post_norm, eps, normed)
        self._feed_forward(layer, buffers, segments, index)
        group.all_reduce(delta)
        kernels.add_rms_norm(delta, residual, self._next_norms[index], eps, normed)

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
