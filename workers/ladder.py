"""The batch sizes for which decode steps are recorded, and how a step is filled up to one of them.

A graph plays what was recorded for one number of rows, so a step takes the next larger one and
fills up with rows of one token on the null block, which nobody owns. Pure: no device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from octavo.workers.batch import Arrays, Int32

MOST = 512  # unasked: beyond it a step is long enough for Python to keep ahead
_STRIDES = ((8, 8), (128, 16), (256, 32))  # from this size on, sizes are so far apart


def ladder(asked: Sequence[int] | None, max_rows: int) -> tuple[int, ...]:
    """The sizes, rising, for steps of at most `max_rows` rows. One number asked for is how far the
    usual ladder goes, several are the sizes themselves; those beyond `max_rows` are of no use."""
    if asked is not None and len(asked) > 1:
        return tuple(sorted({size for size in asked if size <= max_rows}))
    top = min(asked[0] if asked else MOST, max_rows)
    sizes = {size for size in (1, 2, 4) if size < top} | {top}
    ends = [start for start, _ in _STRIDES[1:]] + [top]
    for (start, stride), end in zip(_STRIDES, ends, strict=True):
        sizes.update(range(start, min(end, top), stride))
    return tuple(sorted(sizes))


def rung(rows: int, sizes: Sequence[int]) -> int | None:
    """The least size that has room for so many rows; None where none has."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else None


def filled_up(step: Arrays, size: int) -> Arrays:
    """A step of one token a row as one of `size` rows. The null block's first slot serves all that
    were added: position 0, a context of one token."""
    missing = size - len(step.ids)
    blocks = step.kv_indptr[-1] + np.arange(1, missing + 1, dtype=np.int32)
    return Arrays(
        ids=_zeros_after(step.ids, missing),
        positions=_zeros_after(step.positions, missing),
        qo_indptr=np.arange(size + 1, dtype=np.int32),
        kv_indptr=np.concatenate((step.kv_indptr, blocks)),
        kv_indices=_zeros_after(step.kv_indices, missing),
        kv_last_page_len=np.pad(step.kv_last_page_len, (0, missing), constant_values=1),
        slots=_zeros_after(step.slots, missing),
        pending=step.pending,
        owners=step.owners,
    )


def nothing_but_filling(size: int) -> Arrays:
    """A step of `size` such rows."""
    none = np.zeros(0, np.int32)
    empty = Arrays(none, none, none, np.zeros(1, np.int32), none, none, none, none, none)
    return filled_up(empty, size)


def _zeros_after(array: Int32, count: int) -> Int32:
    return np.pad(array, (0, count))
