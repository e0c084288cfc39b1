"""Turns a plan and the worker's rows into the index arrays of one forward pass.

Block tables are kept a second time as a padded int32 array, row by row, so that a step copies what
has changed and gathers the rest in numpy instead of walking every table in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.kernels.base import Batch
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Replace, Work
from octavo.workers.upload import upload

Int32 = npt.NDArray[np.int32]

PENDING = -1  # in a row's tokens: one that the device knows and the host does not yet


@dataclass(frozen=True, slots=True)
class Arrays:
    """A forward pass in the host's memory: see `StepInput` and `Batch`. `pending` are the places in
    `ids` of tokens that only the device knows, `owners` the numbers of their rows."""

    ids: Int32
    positions: Int32
    qo_indptr: Int32
    kv_indptr: Int32
    kv_indices: Int32
    kv_last_page_len: Int32
    slots: Int32
    pending: Int32
    owners: Int32

    @property
    def num_rows(self) -> int:
        return len(self.kv_last_page_len)

    def batch(self, block_size: int) -> Batch:
        """The index arrays in CPU memory."""
        return _batch([torch.from_numpy(array) for array in self.index], block_size)

    @property
    def index(self) -> list[Int32]:
        """In the order of `Batch`."""
        return [
            *(self.qo_indptr, self.kv_indptr, self.kv_indices),
            *(self.kv_last_page_len, self.slots),
        ]


@dataclass(frozen=True, slots=True)
class StepInput:
    """What one forward pass reads. Both tensors are int32 `[num_tokens]`."""

    ids: Tensor
    positions: Tensor
    batch: Batch


class Batcher:
    """Holds the padded tables between steps. A row number that was dropped and born again is told
    by the identity of its `Row`."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.device = device
        self._tables: Int32 = np.zeros((0, 0), np.int32)
        self._known: list[Row | None] = []
        self._filled: list[int] = []

    def replace(self, replaced: Sequence[Replace], rows: Mapping[int, Row]) -> None:
        """Follows a plan's copies-on-write. Comes before `build`, also where nothing is built."""
        for item in replaced:
            known = item.row < len(self._known) and self._known[item.row] is rows[item.row]
            if known and item.place < self._filled[item.row]:
                self._tables[item.row, item.place] = item.block

    def build(self, work: Sequence[Work], rows: Mapping[int, Row]) -> StepInput:
        """`arrays`, on the device."""
        return self.place(self.arrays(work, rows))

    def place(self, step: Arrays) -> StepInput:
        """The arrays as tensors on the device."""
        host = step.batch(self.block_size)
        if self.device.type == "cpu":
            return StepInput(torch.from_numpy(step.ids), torch.from_numpy(step.positions), host)
        ids, positions, *index = upload([step.ids, step.positions, *step.index], self.device)
        return StepInput(ids, positions, _batch(index, self.block_size, host))

    def arrays(self, work: Sequence[Work], rows: Mapping[int, Row]) -> Arrays:
        """The tokens of all `work`, in plan order, some of which must have tokens: a Work without
        any has no part in the pass."""
        size = self.block_size
        work = [item for item in work if item.count]
        self._reserve(work, rows)
        known: list[int] = []
        for item in work:
            row = rows[item.row]
            if item.count == 1:
                known.append(row.tokens[item.start])
            else:
                known += row.tokens[item.start : item.start + item.count]
            self._follow(item.row, row)

        ids = np.array(known, np.int32)
        numbers = np.array([item.row for item in work], np.intp)
        starts = np.array([item.start for item in work], np.int32)
        counts = np.array([item.count for item in work], np.int32)
        lengths = starts + counts
        blocks = (lengths + size - 1) // size
        qo_indptr = _offsets(counts)
        row_of = np.repeat(numbers, counts)

        positions = np.arange(len(ids), dtype=np.int32)
        positions += np.repeat(starts - qo_indptr[:-1], counts)
        slots = self._tables[row_of, positions // size]
        slots = slots * size + positions % size
        table = self._tables[numbers, : blocks.max()]
        kv_indices = table[np.arange(table.shape[1]) < blocks[:, None]]
        pending = (ids == PENDING).nonzero()[0].astype(np.int32)
        return Arrays(
            ids=ids,
            positions=positions,
            qo_indptr=qo_indptr,
            kv_indptr=_offsets(blocks),
            kv_indices=kv_indices,
            kv_last_page_len=(lengths - 1) % size + 1,
            slots=slots,
            pending=pending,
            owners=row_of[pending].astype(np.int32),
        )

    def _reserve(self, work: Sequence[Work], rows: Mapping[int, Row]) -> None:
        """Makes the padded array large enough, doubling, so that growth is rare."""
        height = 1 + max(item.row for item in work)
        width = max(len(rows[item.row].table) for item in work)
        old_height, old_width = self._tables.shape
        if height > old_height or width > old_width:
            grown = np.zeros((_room(old_height, height), _room(old_width, width)), np.int32)
            grown[:old_height, :old_width] = self._tables
            self._tables = grown
            missing = len(grown) - len(self._known)
            self._known += [None] * missing
            self._filled += [0] * missing

    def _follow(self, number: int, row: Row) -> None:
        if self._known[number] is not row:
            self._known[number] = row
            self._filled[number] = 0
        filled, length = self._filled[number], len(row.table)
        if filled < length:
            self._tables[number, filled:length] = row.table[filled:]
            self._filled[number] = length


def _batch(index: Sequence[Tensor], block_size: int, host: Batch | None = None) -> Batch:
    qo_indptr, kv_indptr, kv_indices, kv_last_page_len, slots = index
    return Batch(qo_indptr, kv_indptr, kv_indices, kv_last_page_len, slots, block_size, host)


def _offsets(counts: Int32) -> Int32:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _room(have: int, need: int) -> int:
    return have if need <= have else max(need, 2 * have, 16)


def ends_of(work: Sequence[Work]) -> list[int]:
    """Where each Work's tokens end in the pass."""
    ends, total = [], 0
    for item in work:
        total += item.count
        ends.append(total)
    return ends
