"""Attention over a sliding window: the last tokens alone."""

import random

import pytest
import torch

from tests.kernels.test_attention import TOLERANCE, mixed_work


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("window", [1, 5, 64, 100, 512, 2000])
def test_matches_the_reference(kernels, reference, contexts, window, dtype):
    rng = random.Random(window)
    heads, kv_heads = rng.choice([(4, 4), (9, 3), (8, 1), (14, 2)])
    lengths = [rng.randint(1, 90), rng.randint(130, 300), rng.randint(1100, 1200)]
    rows = contexts(lengths, heads, kv_heads, rng.choice([16, 40, 64]), 16, dtype, seed=window)
    work = mixed_work(lengths, rng)
    before = [(row, 0, start) for row, start, _ in work if start > 0]
    results = []
    for implementation in (kernels, reference):
        cache = rows.empty_cache()
        rows.write(implementation, cache, before)
        results.append(rows.step(implementation, cache, work, window).float())
    torch.testing.assert_close(*results, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_the_reference_forgets_what_lies_before_the_window(reference, contexts):
    rows = contexts([30], 2, 1, 16, 16, torch.float32)
    (qkv,) = rows.qkv
    at_once = rows.step(reference, rows.empty_cache(), [rows.whole(0)], 8)
    qkv[:20] = 7.0
    other = rows.step(reference, rows.empty_cache(), [rows.whole(0)], 8)
    assert torch.equal(at_once[27:], other[27:]) and not torch.equal(at_once[26], other[26])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("window", [30, 600])
def test_chunking_does_not_change_the_bits(native_kernels, contexts, window, dtype):
    length = 1300
    rows = contexts([length], 6, 2, 64, 16, dtype)
    at_once = rows.step(native_kernels, rows.empty_cache(), [rows.whole(0)], window)
    for cuts in ([1, 2, 512], [100, 600, 601, 1299], [*range(1, length, 137)]):
        cache = rows.empty_cache()
        chunks = [
            rows.step(native_kernels, cache, [(0, start, end)], window)
            for start, end in zip([0, *cuts], [*cuts, length], strict=True)
        ]
        assert torch.equal(torch.cat(chunks), at_once), cuts


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_a_window_beyond_the_context_changes_no_bits(kernels, contexts, dtype):
    rows = contexts([300, 20], 4, 2, 64, 16, dtype)
    work = [rows.whole(0), rows.whole(1)]
    found = [rows.step(kernels, rows.empty_cache(), work, window) for window in (None, 300)]
    assert torch.equal(*found)
