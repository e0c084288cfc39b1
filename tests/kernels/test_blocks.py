"""Copying whole blocks."""

import pytest
import torch

from octavo.kernels.base import block_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_are_exact_and_touch_nothing_else(kernels, dtype):
    # 300 KB a block, so that the native kernels cut it in uneven pieces.
    cache = torch.randn(9, 5, 2, 3, 16, 160).to(dtype)
    assert cache[0].nbytes == block_bytes(5, 3, 16, 160, dtype)
    before = cache.clone()
    kernels.copy_blocks(cache, torch.tensor([[1, 4], [1, 5], [8, 2]]))
    source = [0, 1, 8, 3, 1, 1, 6, 7, 8]
    assert torch.equal(cache, before[source])


def test_nothing_to_copy(kernels):
    cache = torch.randn(3, 1, 2, 1, 4, 8)
    before = cache.clone()
    kernels.copy_blocks(cache, torch.empty(0, 2, dtype=torch.int64))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("pair", [[0, 3], [-1, 1], [3, 0]])
def test_blocks_out_of_bounds_are_refused(best_kernels, pair):
    with pytest.raises(IndexError, match="3 blocks"):
        best_kernels.copy_blocks(torch.zeros(3, 1, 2, 1, 4, 8), torch.tensor([pair]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_what_was_gathered_is_scattered(kernels, dtype):
    cache = torch.randint(0, 100, (7, 2, 2, 3, 5, 4)).to(dtype)
    numbers, staged = torch.tensor([5, 0, 5, 2]), torch.empty_like(cache[:4])
    kernels.gather_blocks(cache, numbers, staged)
    assert torch.equal(staged, cache[[5, 0, 5, 2]])
    other = torch.zeros_like(cache)
    kernels.scatter_blocks(staged[1:], numbers[1:], other)
    assert torch.equal(other[[0, 5, 2]], cache[[0, 5, 2]]) and not other[[1, 3, 4, 6]].any()


def test_a_copied_block_reads_like_its_source(kernels, contexts):
    rows = contexts([48], 4, 2, 32, 16, torch.float32)
    cache = rows.empty_cache()
    first = rows.step(kernels, cache, [rows.whole(0)])
    source = rows.tables[0][1]
    kernels.copy_blocks(cache, torch.tensor([[source, 0]]))
    cache[source] = float("nan")
    rows.tables[0][1] = 0
    again = rows.step(kernels, cache, [(0, 32, 48)])
    assert torch.equal(again, first[32:])
