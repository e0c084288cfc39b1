"""Paged attention in Triton: for what FlashInfer does not do, and for machines without it.

It takes float32, and any head size and block size. Rows of one query are cut into at most `SPLITS`
runs of tokens, whose results are merged, so that a few long rows fill a GPU; where the cuts are
depends on a row's length alone. Longer pieces of a prompt are cut into tiles of queries, each of
which walks over all that it may see. So a row's result is the same bits in any company.

The heads that share a KV head are rows of one matrix, so that its keys are read once for them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.base import Batch
from octavo.kernels.cuda.division import tiles
from octavo.kernels.cuda.options import FUSED

SPLITS = 16
LEAST_SPLIT = 256  # tokens
TILE_ROWS = 64  # queries times the heads that share a KV head
LEAST_ROWS = 16  # of a matrix that tensor cores multiply
LOG2_E = 1.4426950408889634
NO_WINDOW = 2**30


@triton.jit
def _walk(
    q,
    last,
    keys,
    values,
    table,
    start,
    end,
    block_stride,
    slot_stride,
    block_size,
    scale,
    window,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Over tokens `start` to `end` of a row: the largest score of each query, its sum of weights
    relative to that, and the weighted sum of values. Query i sees the last `window` tokens up to
    `last[i]`; of those here perhaps none."""
    columns = tl.arange(0, PADDED)
    wide = (columns < DIM)[None, :]
    most = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    for first in range(start, end, TOKENS):
        tokens = first + tl.arange(0, TOKENS)
        there = tokens < end
        block = tl.load(table + tokens // block_size, mask=there, other=0).to(tl.int64)
        cell = block * block_stride + tokens % block_size * slot_stride
        place = cell[:, None] + columns[None, :]
        mask = there[:, None] & wide
        k = tl.load(keys + place, mask=mask, other=0.0).to(q.dtype)
        v = tl.load(values + place, mask=mask, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        age = last[:, None] - tokens[None, :]
        seen = there[None, :] & (age >= 0) & (age < window)
        scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        base = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(most - base)
        mass = mass * keep + tl.sum(weights, axis=1)
        sums = sums * keep[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
        most = now
    return most, mass, sums


@triton.jit
def _length(kv_indptr, last_page_len, row, block_size):
    blocks = tl.load(kv_indptr + row + 1) - tl.load(kv_indptr + row)
    return (blocks - 1) * block_size + tl.load(last_page_len + row)


@triton.jit
def _split_length(length, SPLITS: tl.constexpr, LEAST: tl.constexpr):
    """Tokens of each run that a row of this length is cut into, but for its last."""
    even = (length + SPLITS - 1) // SPLITS
    return (even + LEAST - 1) // LEAST * LEAST


@triton.jit
def _attend_pieces(
    query,
    cache,
    out,
    tile_rows,
    tile_firsts,
    qo_indptr,
    kv_indptr,
    kv_indices,
    last_page_len,
    query_token,
    out_token,
    block_stride,
    value_offset,
    head_stride,
    slot_stride,
    block_size,
    scale,
    window,
    group,
    queries,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """A tile of `queries` queries of one row, and the `group` heads of one KV head."""
    row = tl.load(tile_rows + tl.program_id(0))
    first = tl.load(tile_firsts + tl.program_id(0))
    head = tl.program_id(1)
    begin = tl.load(qo_indptr + row)
    count = tl.load(qo_indptr + row + 1) - begin
    length = _length(kv_indptr, last_page_len, row, block_size)
    lane, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
    number = first + lane // group
    used = (lane < queries * group) & (number < count)
    token = (begin + number).to(tl.int64)[:, None]
    inside = (head * group + lane % group)[:, None] * DIM + columns[None, :]
    mask = used[:, None] & (columns < DIM)[None, :]
    q = tl.load(query + token * query_token + inside, mask=mask, other=0.0)
    last = length - count + tl.where(used, number, first)
    most, mass, sums = _walk(
        q,
        last,
        cache + head * head_stride,
        cache + head * head_stride + value_offset,
        kv_indices + tl.load(kv_indptr + row),
        tl.maximum(0, length - count + first + 1 - window) // TOKENS * TOKENS,
        tl.minimum(length, length - count + first + queries),
        block_stride,
        slot_stride,
        block_size,
        scale,
        window,
        DIM,
        PADDED,
        ROWS,
        TOKENS,
    )
    result = (sums / mass[:, None]).to(out.dtype.element_ty)
    tl.store(out + token * out_token + inside, result, mask=mask)


@triton.jit
def _attend_singles(
    query,
    cache,
    partial,
    partial_most,
    partial_mass,
    rows,
    qo_indptr,
    kv_indptr,
    kv_indices,
    last_page_len,
    query_token,
    block_stride,
    value_offset,
    head_stride,
    slot_stride,
    block_size,
    scale,
    window,
    group,
    heads,
    LISTED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One run of the tokens of a row of one query, for the heads of one KV head."""
    item, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + item) if LISTED else item
    length = _length(kv_indptr, last_page_len, row, block_size)
    run = _split_length(length, SPLITS, LEAST)
    if split * run < length:
        lane, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
        token = tl.load(qo_indptr + row).to(tl.int64)
        number = head * group + lane
        mask = (lane < group)[:, None] & (columns < DIM)[None, :]
        place = query + token * query_token + number[:, None] * DIM + columns[None, :]
        q = tl.load(place, mask=mask, other=0.0)
        most, mass, sums = _walk(
            q,
            tl.full([ROWS], 0, tl.int32) + length - 1,
            cache + head * head_stride,
            cache + head * head_stride + value_offset,
            kv_indices + tl.load(kv_indptr + row),
            tl.maximum(split * run, (length - window) // TOKENS * TOKENS),
            tl.minimum(split * run + run, length),
            block_stride,
            slot_stride,
            block_size,
            scale,
            window,
            DIM,
            PADDED,
            ROWS,
            TOKENS,
        )
        at = (item.to(tl.int64) * heads + number) * SPLITS + split
        tl.store(partial_most + at, most, mask=lane < group)
        tl.store(partial_mass + at, mass, mask=lane < group)
        tl.store(partial + at[:, None] * DIM + columns[None, :], sums, mask=mask)


@triton.jit
def _merge_singles(
    partial,
    partial_most,
    partial_mass,
    out,
    rows,
    qo_indptr,
    kv_indptr,
    last_page_len,
    out_token,
    block_size,
    heads,
    LISTED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One head of a row of one query, from all its runs."""
    item, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + item) if LISTED else item
    length = _length(kv_indptr, last_page_len, row, block_size)
    run = _split_length(length, SPLITS, LEAST)
    split, columns = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    at = (item.to(tl.int64) * heads + head) * SPLITS + split
    there = split * run < length
    most = tl.load(partial_most + at, mask=there, other=float("-inf"))
    factor = tl.exp2(most - tl.max(most, axis=0))
    mass = tl.load(partial_mass + at, mask=there, other=0.0) * factor
    mask = there[:, None] & (columns < DIM)[None, :]
    sums = tl.load(partial + at[:, None] * DIM + columns[None, :], mask=mask, other=0.0)
    result = tl.sum(sums * factor[:, None], axis=0) / tl.sum(mass, axis=0)
    place = out + tl.load(qo_indptr + row).to(tl.int64) * out_token + head * DIM + columns
    tl.store(place, result.to(out.dtype.element_ty), mask=columns < DIM)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one batch needs, for one size of a tile. `singles` is None where all rows are."""

    singles: Tensor | None
    num_singles: int
    tile_rows: Tensor
    tile_firsts: Tensor


class TritonAttention:
    """Prepares a batch where its first layer is attended, from what lies on the CPU."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._queries = 0
        self._work: _Work | None = None

    def attend(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        """`Kernels.attention`."""
        tokens, heads, dim = query.shape
        kv_heads = cache.shape[2]
        _check(query, cache, batch, out)
        if not tokens:
            return
        group = heads // kv_heads
        rows = max(TILE_ROWS, triton.next_power_of_2(group))
        work = self._prepared(batch, rows // group)
        block, kind, head, slot, _ = cache.stride()
        layout = (
            *(block, kind, head, slot, batch.block_size),
            *(scale * LOG2_E, window or NO_WINDOW, group),
        )
        padded = max(16, triton.next_power_of_2(dim))
        # Keys and values of so many tokens lie in shared memory, of which GPUs have little.
        at_once = max(16, min(64, 16_384 // (padded * query.element_size())))
        sizes = {"DIM": dim, "PADDED": padded, **FUSED}
        arrays = batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.kv_last_page_len
        num_tiles = len(work.tile_rows)
        if num_tiles:
            _attend_pieces[num_tiles, kv_heads](
                query,
                cache,
                out,
                work.tile_rows,
                work.tile_firsts,
                *arrays,
                query.stride(0),
                out.stride(0),
                *layout,
                rows // group,
                **sizes,
                ROWS=rows,
                TOKENS=at_once,
            )
        if work.num_singles:
            listed = batch.qo_indptr if work.singles is None else work.singles
            partial = query.new_empty(work.num_singles, heads, SPLITS, dim, dtype=torch.float32)
            most, mass = partial.new_empty(2, work.num_singles, heads, SPLITS)
            parts = {"SPLITS": SPLITS, "LEAST": LEAST_SPLIT, "LISTED": work.singles is not None}
            _attend_singles[work.num_singles, kv_heads, SPLITS](
                query,
                cache,
                partial,
                most,
                mass,
                listed,
                *arrays,
                query.stride(0),
                *layout,
                heads,
                **sizes,
                **parts,
                ROWS=max(LEAST_ROWS, triton.next_power_of_2(group)),
                TOKENS=at_once,
            )
            _merge_singles[work.num_singles, heads](
                partial,
                most,
                mass,
                out,
                listed,
                batch.qo_indptr,
                batch.kv_indptr,
                batch.kv_last_page_len,
                out.stride(0),
                batch.block_size,
                heads,
                **sizes,
                **parts,
            )

    def _prepared(self, batch: Batch, queries: int) -> _Work:
        if self._work is None or batch is not self._batch or queries != self._queries:
            self._work = _prepare(batch, queries)
            self._batch, self._queries = batch, queries
        return self._work


def _prepare(batch: Batch, queries: int) -> _Work:
    device, rows = batch.slots.device, len(batch.kv_last_page_len)
    none = torch.empty(0, dtype=torch.int32)
    if batch.static:
        return _Work(None, rows, none, none)
    qo_indptr = (batch.host or batch).qo_indptr.cpu()
    singles = (qo_indptr.diff() == 1).nonzero()[:, 0].int()
    if len(singles) == rows:
        return _Work(None, rows, none, none)
    tile_rows, firsts = (torch.from_numpy(x) for x in tiles(qo_indptr.numpy(), queries))
    return _Work(singles.to(device), len(singles), tile_rows.to(device), firsts.to(device))


def _check(query: Tensor, cache: Tensor, batch: Batch, out: Tensor) -> None:
    """Raises ValueError or TypeError for what the kernels cannot read."""
    tokens, heads, dim = query.shape
    if query.shape != out.shape or tokens != len(batch.slots) or heads % cache.shape[2]:
        raise ValueError(
            f"queries {list(query.shape)} and results {list(out.shape)} do not fit "
            f"{len(batch.slots)} tokens and {cache.shape[2]} KV heads"
        )
    for x in (query, out):
        if x.stride()[1:] != (dim, 1) and heads != 1:
            raise ValueError(f"a token's heads must be contiguous, not of strides {x.stride()}")
    if cache.shape[3:] != (batch.block_size, dim) or cache.stride(4) != 1:
        raise ValueError(
            f"a cache of {list(cache.shape)} does not fit heads of {dim} in blocks of "
            f"{batch.block_size}"
        )
    if query.dtype is not out.dtype:
        raise TypeError(f"dtypes differ: {[query.dtype, out.dtype]}")
