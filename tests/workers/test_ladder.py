"""Sizes of graphs, and steps filled up to one of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Work
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import Batcher
from octavo.workers.config import WorkerConfig
from octavo.workers.ladder import filled_up, ladder, nothing_but_filling, rung


@pytest.mark.parametrize(
    "asked, max_rows, expected",
    [
        (None, 1, (1,)),
        (None, 3, (1, 2, 3)),
        (None, 20, (1, 2, 4, 8, 16, 20)),
        ([16], 256, (1, 2, 4, 8, 16)),
        ([300], 20, (1, 2, 4, 8, 16, 20)),
        ([32, 3, 7, 7], 16, (3, 7)),
        ([32, 64], 16, ()),
    ],
)
def test_the_ladder_goes_as_far_as_there_are_rows(asked, max_rows, expected):
    assert ladder(asked, max_rows) == expected


def test_steps_of_any_size_are_filled_up_by_little():
    sizes = ladder(None, 1000)
    assert sizes[-1] == 512
    for rows in range(1, 513):
        size = rung(rows, sizes)
        assert size is not None and size - rows <= max(7, rows // 8)
    assert rung(513, sizes) is None


def decode_step(contexts, block_size=4):
    rows = {
        number: Row([7] * length, 1, [10 * number + b for b in range(1, 6)], 0, SamplingParams())
        for number, length in enumerate(contexts)
    }
    work = [Work(number, length - 1, 1, True) for number, length in enumerate(contexts)]
    return Batcher(block_size, torch.device("cpu")).arrays(work, rows)


def test_rows_that_fill_up_are_one_token_in_the_null_block():
    step = decode_step([1, 9, 4])
    full = filled_up(step, 5)
    assert full.num_rows == 5 and len(full.ids) == 5
    for name in ("ids", "positions", "kv_indices", "kv_last_page_len", "slots"):
        ours = getattr(step, name)
        assert getattr(full, name)[: len(ours)].tolist() == ours.tolist(), name
        assert getattr(full, name).dtype == np.int32, name
    assert full.qo_indptr.tolist() == [0, 1, 2, 3, 4, 5]
    assert full.kv_indptr.tolist() == [0, 1, 4, 5, 6, 7]
    assert full.kv_indices[5:].tolist() == [0, 0]
    assert full.kv_last_page_len[3:].tolist() == [1, 1]
    assert full.slots[3:].tolist() == full.positions[3:].tolist() == full.ids[3:].tolist() == [0, 0]
    assert filled_up(step, 3).kv_indices.tolist() == step.kv_indices.tolist()
    empty = nothing_but_filling(3)
    assert empty.kv_indptr.tolist() == [0, 1, 2, 3] and empty.kv_indices.tolist() == [0, 0, 0]


def test_a_size_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="cuda_graph_sizes must be at least 1, got 0"):
        WorkerConfig("model", cuda_graph_sizes=[8, 0])
