"""Arrays that travel together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.workers.ladder import nothing_but_filling
from octavo.workers.latest import Latest
from octavo.workers.upload import ALIGNMENT, Packing, mark, upload

CPU = torch.device("cpu")
ARRAYS = [
    np.arange(5, dtype=np.int32),
    np.zeros(0, np.int64),
    np.arange(33, dtype=np.float64) / 7,
    np.array([-1, 2**40], np.int64),
    np.array([0.5], np.float32),
]


def test_arrays_that_were_packed_come_out_as_they_were():
    packing = Packing.of(ARRAYS)
    memory = torch.full((packing.offsets[-1],), 255, dtype=torch.uint8)
    used = packing.fill(memory.numpy(), ARRAYS)
    assert used == packing.offsets[-2] + 4
    for array, view in zip(ARRAYS, packing.views(memory), strict=True):
        assert view.numpy().dtype == array.dtype
        assert view.tolist() == array.tolist()
    assert all(offset % ALIGNMENT == 0 for offset in packing.offsets)


def test_rooms_may_be_larger_than_what_is_in_them_but_not_smaller():
    packing = Packing([8, 8], [np.dtype(np.int32)] * 2)
    memory = torch.zeros(packing.offsets[-1], dtype=torch.uint8)
    short = np.arange(3, dtype=np.int32)
    assert packing.fill(memory.numpy(), [short, short]) == ALIGNMENT + 12
    assert packing.views(memory)[1].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    with pytest.raises(AssertionError, match="longer than its room"):
        packing.fill(memory.numpy(), [np.arange(9, dtype=np.int32), short])


def test_on_the_cpu_nothing_travels_and_everything_is_done():
    array = np.arange(4, dtype=np.int32)
    (tensor,) = upload([array], CPU)
    array[2] = 9
    assert tensor.tolist() == [0, 1, 9, 3]
    here = mark(CPU)
    here.wait()
    assert here.done()


def test_the_latest_token_of_a_row_goes_where_it_is_awaited():
    latest = Latest(CPU)
    latest.store([3, 0], torch.tensor([30, 10]))
    latest.store([40], torch.tensor([400]))
    latest.store([3], torch.tensor([31]))
    step = nothing_but_filling(5)
    ids = torch.arange(5, dtype=torch.int32)
    latest.fill(ids, step)
    assert ids.tolist() == [0, 1, 2, 3, 4], "nothing is awaited"
    awaited = {
        "pending": np.array([0, 4, 1], np.int32),
        "owners": np.array([40, 3, 0], np.int32),
    }
    latest.fill(ids, replace(step, **awaited))
    assert ids.tolist() == [400, 10, 2, 3, 31]
