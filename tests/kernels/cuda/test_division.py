"""Cutting up batches: each part is a batch of its own, and together they are the whole."""

import random

import numpy as np
import pytest
import torch

from octavo.kernels.base import Batch
from octavo.kernels.cuda.division import divide, leading_singles, shared_blocks, tiles

SIZE = 4


def random_rows(rng, shared):
    """(block table, length, queries) of each row; the first `shared` blocks are the same."""
    rows = []
    for row in range(rng.randint(1, 12)):
        length = shared * SIZE + rng.randint(1, 30)
        blocks = -(-length // SIZE)
        table = [*range(1, shared + 1), *(1000 * (row + 1) + i for i in range(blocks - shared))]
        queries = 1 if rng.random() < 0.6 else rng.randint(0, length - shared * SIZE)
        rows.append((table, length, queries))
    if rng.random() < 0.7:  # as the scheduler has it
        rows.sort(key=lambda row: row[2] != 1)
    return rows


def batch_of(rows):
    def array(numbers):
        return torch.tensor(numbers, dtype=torch.int32)

    def pointers(counts):
        return array([0, *np.cumsum(counts).tolist()])

    tokens = sum(queries for *_, queries in rows)
    return Batch(
        pointers([queries for *_, queries in rows]),
        pointers([len(table) for table, *_ in rows]),
        array([block for table, *_ in rows for block in table]),
        array([length - (len(table) - 1) * SIZE for table, length, _ in rows]),
        array([0] * tokens),
        SIZE,
    )


def rows_of(part):
    """(block table, length, first query, last query) of a part's rows."""
    qo, kv, indices, last = (
        x.tolist() for x in (part.qo_indptr, part.kv_indptr, part.kv_indices, part.kv_last_page_len)
    )
    assert qo[0] == kv[0] == 0 and len(indices) == kv[-1] and part.start + qo[-1] == part.end
    return [
        (indices[kv[i] : kv[i + 1]], (kv[i + 1] - kv[i] - 1) * SIZE + rest,
         part.start + qo[i], part.start + qo[i + 1])
        for i, rest in enumerate(last)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_are_the_whole(seed):
    rng = random.Random(seed)
    shared = rng.choice([0, 0, 1, 5])
    rows = random_rows(rng, shared)
    division = divide(batch_of(rows), least_rows=2, least_tokens=SIZE)
    prefix = []
    if division.shared is not None:
        assert len(rows) > 1
        ((prefix, length, first, end),) = rows_of(division.shared)
        assert length == len(prefix) * SIZE and (first, end) == (0, sum(row[2] for row in rows))
        assert prefix == rows[0][0][: len(prefix)]
    elif len(rows) > 1 and any(queries for *_, queries in rows):
        assert shared == 0
    parts = [part for part in (division.singles, division.pieces) if part is not None]
    found = [row for part in parts for row in rows_of(part)]
    at = 0
    expected = []
    for table, length, queries in rows:
        own = length - len(prefix) * SIZE
        assert own >= max(queries, 1) and table[: len(prefix)] == prefix
        expected.append((table[len(prefix) :], own, at, at + queries))
        at += queries
    assert [row for row in found if row[2] < row[3]] == [row for row in expected if row[2] < row[3]]
    if division.singles is not None:
        assert all(end - first == 1 for _, _, first, end in rows_of(division.singles))
    if division.pieces is not None:
        _, _, first, end = rows_of(division.pieces)[0]
        assert end - first != 1, "the first piece could have been a single"


def test_few_rows_or_tokens_are_not_worth_a_merge():
    rows = [([1, 2, 10 + i], 9, 1) for i in range(4)]
    batch = batch_of(rows)
    assert divide(batch, least_rows=4, least_tokens=8).shared is not None
    assert divide(batch, least_rows=5, least_tokens=8).shared is None
    assert divide(batch, least_rows=4, least_tokens=9).shared is None
    assert divide(batch).shared is None


def arrays(batch):
    return [
        x.numpy()
        for x in (batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.kv_last_page_len)
    ]


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([([1, 2, 3], 12, 1), ([1, 2, 4], 12, 1)], 2),
        ([([1, 2, 3], 12, 1), ([1, 2, 3], 12, 1)], 2),  # the last token's block is each row's own
        ([([1, 2, 3], 9, 1), ([1, 2, 3], 12, 5)], 1),  # queries from token 7 on
        ([([1, 2], 8, 8), ([1, 2], 8, 1)], 0),
        ([([1, 2], 8, 0), ([1, 2], 8, 1)], 1),
        ([([0], 1, 1), ([1, 2], 8, 1)], 0),  # a row that fills up
        ([([0], 1, 1), ([0], 1, 1)], 0),
        ([([5, 2, 3], 12, 1), ([1, 2, 3], 12, 1)], 0),
    ],
)
def test_shared_blocks(rows, expected):
    assert shared_blocks(*arrays(batch_of(rows)), SIZE) == expected


@pytest.mark.parametrize(
    "counts, expected", [([1, 1, 5, 1], 2), ([3, 1], 0), ([1, 1], 2), ([0, 1], 0)]
)
def test_leading_singles(counts, expected):
    assert leading_singles(np.array([0, *np.cumsum(counts)], np.int32)) == expected


def test_tiles():
    indptr = np.array([0, 1, 6, 6, 8, 9, 13], np.int32)  # 1, 5, 0, 2, 1 and 4 queries
    rows, firsts = tiles(indptr, 4)
    assert rows.tolist() == [1, 1, 3, 5] and firsts.tolist() == [0, 4, 0, 0]
    assert rows.dtype == firsts.dtype == np.int32
    assert [x.tolist() for x in tiles(np.array([0, 1, 2], np.int32), 4)] == [[], []]


def test_a_batch_without_queries_has_no_parts():
    division = divide(batch_of([([1, 2], 8, 0), ([3], 2, 0)]))
    assert (division.shared, division.singles, division.pieces) == (None, None, None)
