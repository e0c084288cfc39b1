"""How a batch is cut up before it is attended: pure functions over its arrays on the CPU.

FlashInfer has one kernel for rows of one query and one for longer pieces of a prompt, and a batch
has both. Where all rows begin with the same blocks, those are attended once for all queries, as one
long row, and the results of the two parts are merged (cascade attention: the shared blocks are read
once a step instead of once a row). The arrays of each part are again those of a `Batch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.kernels.base import Batch

Int32 = npt.NDArray[np.int32]

CASCADE_ROWS = 8  # fewer rows, or fewer shared tokens, do not pay for the merging
CASCADE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Part:
    """Rows whose queries are tokens `start` to `end` of the batch. The arrays are int32, on the
    CPU; `qo_indptr` and `kv_indptr` begin with 0."""

    start: int
    end: int
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_last_page_len: Tensor


@dataclass(frozen=True, slots=True)
class Division:
    """`shared` is one row, of all queries, none of which is in its blocks; the others have what
    follows these. `singles` are the leading rows of one query each, `pieces` all others."""

    shared: Part | None
    singles: Part | None
    pieces: Part | None


def divide(host: Batch, least_rows: int = CASCADE_ROWS, least_tokens: int = CASCADE_TOKENS
           ) -> Division:  # fmt: skip
    """Cuts up a batch that is on the CPU; without a shared part if that has fewer tokens than
    `least_tokens`, or the batch fewer rows than `least_rows`."""
    qo, kv, indices, last = (
        getattr(host, name).numpy()
        for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")
    )
    indices = indices[: kv[-1]]
    tokens = int(qo[-1])
    if not tokens:
        return Division(None, None, None)
    shared = None
    if len(last) >= least_rows:
        count = shared_blocks(qo, kv, indices, last, host.block_size)
        if count and count * host.block_size >= least_tokens:
            shared = _part(
                0,
                np.array([0, tokens]),
                np.array([0, count]),
                indices[kv[0] : kv[0] + count],
                np.array([host.block_size]),
            )
            kv, indices = _without_first(kv, indices, count)
    singles = leading_singles(qo)
    return Division(
        shared,
        _rows(0, singles, qo, kv, indices, last),
        _rows(singles, len(last), qo, kv, indices, last),
    )


def leading_singles(qo_indptr: Int32) -> int:
    """How many rows from the first have exactly one query."""
    others = np.flatnonzero(np.diff(qo_indptr) != 1)
    return int(others[0]) if len(others) else len(qo_indptr) - 1


def shared_blocks(
    qo_indptr: Int32, kv_indptr: Int32, kv_indices: Int32, last: Int32, block_size: int
) -> int:
    """How many blocks from the first all rows have in common, of those in which no row has a
    query: each row's queries must lie, whole, in what follows, which must not be nothing."""
    lengths = (np.diff(kv_indptr) - 1) * block_size + last
    most = int(((lengths - np.diff(qo_indptr).clip(1)) // block_size).min())
    starts = kv_indptr[:-1]
    if most < 1 or (kv_indices[starts] != kv_indices[starts[0]]).any():
        return 0
    first = kv_indices[starts[0] : starts[0] + most]
    alike = (kv_indices[starts[:, None] + np.arange(most)] == first).all(axis=0)
    return most if alike.all() else int(np.argmin(alike))


def tiles(qo_indptr: Int32, queries: int) -> tuple[Int32, Int32]:
    """Cuts the rows that do not have exactly one query into tiles of at most `queries`: each one's
    row, and which of its row's queries is the first."""
    counts = np.diff(qo_indptr)
    counts = np.where(counts == 1, 0, -(-counts // queries))
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    return rows, ((np.arange(len(rows)) - begins) * queries).astype(np.int32)


def _without_first(kv_indptr: Int32, kv_indices: Int32, count: int) -> tuple[Int32, Int32]:
    """The block tables without each row's first `count` blocks."""
    places = np.arange(len(kv_indices)) - np.repeat(kv_indptr[:-1], np.diff(kv_indptr))
    return kv_indptr - count * np.arange(len(kv_indptr)), kv_indices[places >= count]


def _rows(
    first: int, end: int, qo_indptr: Int32, kv_indptr: Int32, kv_indices: Int32, last: Int32
) -> Part | None:
    qo, kv = qo_indptr[first : end + 1], kv_indptr[first : end + 1]
    if qo[0] == qo[-1]:
        return None
    return _part(int(qo[0]), qo - qo[0], kv - kv[0], kv_indices[kv[0] : kv[-1]], last[first:end])


def _part(
    start: int,
    qo_indptr: npt.NDArray[np.integer],
    kv_indptr: npt.NDArray[np.integer],
    kv_indices: Int32,
    last: npt.NDArray[np.integer],
) -> Part:
    return Part(
        start,
        start + int(qo_indptr[-1]),
        *(
            torch.from_numpy(np.ascontiguousarray(array, np.int32))
            for array in (qo_indptr, kv_indptr, kv_indices, last)
        ),
    )
