"""Keys and values on their way into the cache: turned, where a model turns them, and stored."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.base import Batch
from octavo.kernels.cuda.options import FUSED
from octavo.kernels.quantized import FP8

HEADS = 8  # of one token, for one program


@triton.jit
def _fit(x, kind: tl.constexpr, NARROW: tl.constexpr):
    """In the cache's dtype. What has no room in FP8 becomes its largest number."""
    if NARROW:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0)
    return x.to(kind)


@triton.jit
def _store(
    query,
    key,
    value,
    cos_sin,
    positions,
    slots,
    cache,
    query_token,
    key_token,
    value_token,
    block_stride,
    value_offset,
    head_stride,
    slot_stride,
    heads,
    kv_heads,
    block_size,
    query_programs,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    TURN: tl.constexpr,
    NARROW: tl.constexpr,
):
    """One token, and some of its heads: the first programs have heads of queries, the others of
    keys and values. A head is handled in halves, whose numbers are turned in pairs."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    part = tl.program_id(1)
    if TURN:
        angle = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF) + columns
        cos = tl.load(angle, mask=columns < HALF, other=0.0)[None, :]
        sin = tl.load(angle + HALF, mask=columns < HALF, other=0.0)[None, :]
        if part < query_programs:
            head = part * HEADS + tl.arange(0, HEADS)
            mask = (head < heads)[:, None] & (columns < HALF)[None, :]
            place = query + token * query_token + head[:, None] * (2 * HALF) + columns[None, :]
            first = tl.load(place, mask=mask).to(tl.float32)
            second = tl.load(place + HALF, mask=mask).to(tl.float32)
            kind = query.dtype.element_ty
            tl.store(place, (first * cos - second * sin).to(kind), mask=mask)
            tl.store(place + HALF, (second * cos + first * sin).to(kind), mask=mask)
    if part >= query_programs:
        head = (part - query_programs) * HEADS + tl.arange(0, HEADS)
        mask = (head < kv_heads)[:, None] & (columns < HALF)[None, :]
        inside = head[:, None] * (2 * HALF) + columns[None, :]
        slot = tl.load(slots + token).to(tl.int64)
        cell = cache + slot // block_size * block_stride + slot % block_size * slot_stride
        cell = cell + head[:, None] * head_stride + columns[None, :]
        place = key + token * key_token + inside
        first = tl.load(place, mask=mask)
        second = tl.load(place + HALF, mask=mask)
        if TURN:
            one, two = first.to(tl.float32), second.to(tl.float32)
            kind = key.dtype.element_ty
            first = (one * cos - two * sin).to(kind)
            second = (two * cos + one * sin).to(kind)
            tl.store(place, first, mask=mask)
            tl.store(place + HALF, second, mask=mask)
        kind = cache.dtype.element_ty
        tl.store(cell, _fit(first, kind, NARROW), mask=mask)
        tl.store(cell + HALF, _fit(second, kind, NARROW), mask=mask)
        place = value + token * value_token + inside
        cell = cell + value_offset
        tl.store(cell, _fit(tl.load(place, mask=mask), kind, NARROW), mask=mask)
        tl.store(cell + HALF, _fit(tl.load(place + HALF, mask=mask), kind, NARROW), mask=mask)


def store(key: Tensor, value: Tensor, cache: Tensor, batch: Batch) -> None:
    """`Kernels.write_kv`."""
    _launch(key, key, value, key, batch.slots, cache, batch, turn=False)


def turn_and_store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    batch: Batch,
) -> None:
    """`Kernels.rotary_write_kv`. Positions are not checked: the table must have them all."""
    _launch(query, key, value, cos_sin, positions, cache, batch, turn=True)


def _launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    batch: Batch,
    turn: bool,
) -> None:
    tokens, kv_heads, dim = key.shape
    if not tokens:
        return
    block, kind, head, slot, element = cache.stride()
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.stride()[1:] != (dim, 1) and x.shape[1:] != (1, dim):
            raise ValueError(f"heads of {name} must be contiguous, not of strides {x.stride()}")
    if element != 1 or dim % 2 or key.shape != value.shape or cache.shape[2:] != (
        kv_heads, batch.block_size, dim):  # fmt: skip
        raise ValueError(
            f"keys {list(key.shape)} and values {list(value.shape)} do not fit a cache of "
            f"{list(cache.shape)} with blocks of {batch.block_size}"
        )
    heads = query.shape[1] if turn else 0
    of_query = triton.cdiv(heads, HEADS)
    _store[tokens, of_query + triton.cdiv(kv_heads, HEADS)](
        query,
        key,
        value,
        cos_sin,
        positions,
        batch.slots,
        cache,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        block,
        kind,
        head,
        slot,
        heads,
        kv_heads,
        batch.block_size,
        of_query,
        HALF=dim // 2,
        PADDED=triton.next_power_of_2(dim // 2),
        HEADS=HEADS,
        TURN=turn,
        NARROW=cache.dtype is FP8,
        **FUSED,
    )
