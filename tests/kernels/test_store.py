"""Keys and values on their way into the cache: turned as transformers does it, and stored."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])


def close(actual, expected):
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def rotary_table(length, dim):
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


@pytest.fixture
def made(contexts):
    """Two rows of 70 and 20 tokens: what they are, the work to store them, and shuffled positions
    that differ from their places."""

    def make(dim, dtype):
        rows = contexts([70, 20], heads=6, kv_heads=2, dim=dim, block_size=16, dtype=dtype)
        positions = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:90].int()
        return rows, [rows.whole(0), rows.whole(1)], positions

    return make


def turn_and_write(kernels, rows, work, table, positions):
    """The turned queries, keys and values, and the layer's cache."""
    cache = rows.empty_cache()
    parts = rows.parts(work)
    kernels.rotary_write_kv(*parts, table, positions, cache[:, 1], rows.batch(work))
    return parts, cache


@dtypes
@pytest.mark.parametrize("dim", [8, 64, 80])
def test_turned_as_the_reference_does(kernels, reference, made, dim, dtype):
    rows, work, positions = made(dim, dtype)
    table = rotary_table(100, dim)
    ours, _ = turn_and_write(kernels, rows, work, table, positions)
    theirs, _ = turn_and_write(reference, rows, work, table, positions)
    for actual, expected in zip(ours, theirs, strict=True):
        close(actual, expected)
    assert torch.equal(ours[2], rows.parts(work)[2])  # values stay as they are


@dtypes
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_turned_is_what_is_stored(kernels, made, dtype, threads):
    rows, work, positions = made(64, dtype)
    torch.set_num_threads(threads)
    (_, key, value), stored = turn_and_write(kernels, rows, work, rotary_table(100, 64), positions)
    cache = rows.empty_cache()
    kernels.write_kv(key, value, cache[:, 1], rows.batch(work))
    assert torch.equal(stored.nan_to_num(nan=7.0), cache.nan_to_num(nan=7.0))
    assert not cache[:, 1].isnan().all()


def test_turned_as_transformers_does(kernels, made):
    rows, work, _ = made(16, torch.float32)
    table, positions = rotary_table(100, 16), torch.arange(5, 95, dtype=torch.int32)
    query, key, _ = rows.parts(work)
    cos, sin = (table[positions.long(), i].repeat(1, 2)[None] for i in (0, 1))
    theirs = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos, sin)
    ours, _ = turn_and_write(kernels, rows, work, table, positions)
    for actual, expected in zip(ours, theirs, strict=False):
        close(actual, expected[0].transpose(0, 1))


@pytest.mark.parametrize("position", [-1, 50])
def test_positions_beyond_the_table_are_refused_before_anything_is_written(
    native_kernels, made, position
):
    rows, work, positions = made(16, torch.float32)
    positions = positions.remainder(50)
    positions[-1] = position
    cache = rows.empty_cache()
    with pytest.raises(IndexError, match="50"):
        native_kernels.rotary_write_kv(
            *rows.parts(work), rotary_table(50, 16), positions, cache[:, 1], rows.batch(work)
        )
    assert cache.isnan().all()
