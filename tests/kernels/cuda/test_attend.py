"""Attention by Triton, interpreted, against the reference and against itself in other company.

Not in bfloat16, whose matrices the interpreter multiplies wrongly.
"""

import pytest
import torch

from octavo.kernels.base import Batch
from octavo.kernels.quantized import FP8, narrowed

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def filled(rows, reference):
    cache = rows.empty_cache()
    rows.write(reference, cache, [rows.whole(row) for row in range(len(rows.lengths))])
    return cache


def attend(kernels, rows, cache, work, batch=None, window=None):
    query, *_ = rows.parts(work)
    out = torch.full(query.shape, float("nan"), dtype=rows.dtype)
    batch = rows.batch(work) if batch is None else batch
    kernels.attention(query, cache[:, 1], batch, rows.dim**-0.5, out, window)
    return out


@pytest.mark.parametrize(
    "heads, kv_heads, dim, block_size, dtype",
    [
        (4, 4, 64, 16, torch.float32),
        (9, 3, 64, 16, torch.float16),
        (6, 1, 40, 8, torch.float32),
        (2, 2, 8, 1, torch.float16),
        (8, 2, 128, 32, torch.float16),
        (20, 1, 16, 64, torch.float32),
    ],
)
def test_matches_the_reference(cuda_kernels, reference, contexts, heads, kv_heads, dim, block_size,
                               dtype):  # fmt: skip
    rows = contexts([150, 1, 33, 64, 90], heads, kv_heads, dim, block_size, dtype)
    cache = filled(rows, reference)
    work = [(0, 149, 150), (1, 0, 1), (4, 89, 90), (2, 0, 33), (3, 40, 64)]
    found, expected = (attend(k, rows, cache, work) for k in (cuda_kernels, reference))
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_narrow_cache(cuda_kernels, reference, contexts):
    rows = contexts([100, 9], 4, 2, 16, 16, torch.float16)
    wide, work = filled(rows, reference), [(0, 80, 100), (1, 8, 9)]
    cache = narrowed(wide.nan_to_num(nan=0.0), FP8)
    found, expected = (attend(k, rows, cache, work) for k in (cuda_kernels, reference))
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def test_runs_of_a_long_row_are_merged(cuda_kernels, reference, contexts):
    rows = contexts([16 * 256 + 40, 600], 2, 1, 32, 16, torch.float32)
    cache = filled(rows, reference)
    work = [(0, rows.lengths[0] - 1, rows.lengths[0]), (1, 599, 600)]
    found, expected = (attend(k, rows, cache, work) for k in (cuda_kernels, reference))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 20, 256, 400])
def test_a_window(cuda_kernels, reference, contexts, window):
    rows = contexts([560, 150], 4, 2, 16, 16, torch.float32)
    cache = filled(rows, reference)
    work = [(0, 559, 560), (1, 149, 150), (0, 450, 560), (1, 0, 70)]
    found, expected = (
        attend(k, rows, cache, work, window=window) for k in (cuda_kernels, reference)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_row_is_the_same_bits_alone_and_among_others(cuda_kernels, reference, contexts):
    rows = contexts([280, 3], 2, 1, 16, 16, torch.float32)
    cache = filled(rows, reference)
    work = [(0, 279, 280), (1, 0, 3), (1, 2, 3), (0, 250, 280)]
    together = attend(cuda_kernels, rows, cache, work)
    at = 0
    for piece in work:
        alone = attend(cuda_kernels, rows, cache, [piece])
        assert torch.equal(alone, together[at : at + len(alone)]), piece
        at += len(alone)


def test_large_scores_stay_finite(cuda_kernels, reference, contexts):
    rows = contexts([130], 4, 2, 16, 16, torch.float32)
    rows.qkv[0][:, : 6 * 16] *= 40
    cache = filled(rows, reference)
    work = [(0, 100, 130), (0, 129, 130)]
    found, expected = (attend(k, rows, cache, work) for k in (cuda_kernels, reference))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_rows_without_queries_are_skipped(cuda_kernels, reference, contexts):
    rows = contexts([40, 20, 30], 4, 2, 16, 16, torch.float32)
    cache = filled(rows, reference)
    with_idle = attend(cuda_kernels, rows, cache, [(0, 39, 40), (1, 20, 20), (2, 25, 30)])
    without = attend(cuda_kernels, rows, cache, [(0, 39, 40), (2, 25, 30)])
    assert torch.equal(with_idle, without)
    assert attend(cuda_kernels, rows, cache, [(1, 20, 20)]).numel() == 0


def test_a_static_batch_reads_its_tensors_alone(cuda_kernels, reference, contexts):
    """Nothing comes from the host, so that a graph can be played on what they hold by then."""
    rows = contexts([40, 20], 4, 2, 16, 16, torch.float32)
    cache = filled(rows, reference)
    cache[0] = 0
    work = [(0, 39, 40), (1, 19, 20)]
    own = rows.batch(work)
    none = torch.zeros(1, dtype=torch.int32)
    batch = Batch(
        torch.arange(4, dtype=torch.int32),
        torch.cat((own.kv_indptr, own.kv_indptr[-1:] + 1)),
        torch.cat((own.kv_indices, torch.zeros(7, dtype=torch.int32))),
        torch.cat((own.kv_last_page_len, none + 1)),
        torch.cat((own.slots, none)),
        16,
        static=True,
    )
    query = torch.cat((rows.parts(work)[0], torch.ones(1, 4, 16)))
    out = torch.empty(3, 4, 16)
    cuda_kernels.attention(query, cache[:, 1], batch, 0.25, out)
    assert torch.equal(out[:2], attend(cuda_kernels, rows, cache, work))
    assert (out[2] == 0).all()


def test_what_does_not_fit_is_refused(cuda_kernels, reference, contexts):
    rows = contexts([40, 20], 4, 2, 16, 16, torch.float32)
    cache = filled(rows, reference)[:, 1]
    batch = rows.batch([(0, 39, 40), (1, 19, 20)])
    x = torch.zeros(2, 4, 16)
    for query, out in [
        (x[:1], x[:1]),
        (x, x[:, :2]),
        (torch.zeros(2, 3, 16), torch.zeros(2, 3, 16)),
        (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8)),
        (torch.zeros(4, 2, 16).transpose(0, 1), x),
    ]:
        with pytest.raises(ValueError):
            cuda_kernels.attention(query, cache, batch, 1.0, out)
    with pytest.raises(TypeError, match="differ"):
        cuda_kernels.attention(x, cache, batch, 1.0, x.half())
