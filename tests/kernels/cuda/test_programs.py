"""Triton's other kernels, interpreted, against the reference.

The interpreter cuts off what does not fit into a bfloat16 instead of rounding it, and multiplies
matrices of them wrongly: so these are allowed a bit more, or left out.
"""

import pytest
import torch

from octavo.kernels.base import Packed
from octavo.kernels.quantized import FP8, quantize_plain

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16", "float16"])


def close(actual, expected):
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def randn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotary_table(length, dim):
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


@dtypes
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (2, 2, 8), (12, 10, 80)])
def test_turned_and_stored(cuda_kernels, reference, contexts, heads, kv_heads, dim, dtype):
    rows = contexts([20, 7], heads, kv_heads, dim, 16, dtype)
    work = [rows.whole(0), rows.whole(1)]
    positions = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:27].int()
    results = []
    for kernels in (cuda_kernels, reference):
        parts, cache = rows.parts(work), rows.empty_cache()
        kernels.rotary_write_kv(
            *parts, rotary_table(100, dim), positions, cache[:, 1], rows.batch(work)
        )
        results.append((*parts, cache.nan_to_num(nan=7.0)))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected)
    assert torch.equal(results[0][2], rows.parts(work)[2])  # values stay as they are
    (query, key, value, stored), _ = results
    cache = rows.empty_cache()
    cuda_kernels.write_kv(key, value, cache[:, 1], rows.batch(work))
    assert torch.equal(cache.nan_to_num(nan=7.0), stored)


def test_stored_in_fp8(cuda_kernels, reference, contexts):
    """Numbers that FP8 has, as the interpreter rounds others wrongly, and some too large."""
    rows = contexts([20], 4, 2, 16, 16, torch.float32)
    rows.qkv[0].round_()[3] *= 1000
    work = [rows.whole(0)]
    caches = []
    for kernels in (cuda_kernels, reference):
        cache = torch.zeros(rows.num_blocks, 3, 2, 2, 16, 16, dtype=FP8)
        rows.write(kernels, cache, work)
        caches.append(cache.float())
    assert torch.equal(*caches) and caches[0].abs().max() == 448


def test_nothing_is_stored_without_tokens(cuda_kernels, contexts):
    rows = contexts([5], 4, 2, 16, 16, torch.float32)
    cache = rows.empty_cache()
    rows.write(cuda_kernels, cache, [(0, 2, 2)])
    assert cache.isnan().all()


def test_what_does_not_fit_the_cache_is_refused(cuda_kernels, contexts):
    rows = contexts([5], 4, 2, 16, 16, torch.float32)
    cache, batch, good = (
        rows.empty_cache()[:, 1],
        rows.batch([rows.whole(0)]),
        torch.zeros(5, 2, 16),
    )
    for key, value in [
        (good, torch.zeros(5, 1, 16)),
        (torch.zeros(5, 4, 16), torch.zeros(5, 4, 16)),
        (torch.zeros(2, 5, 16).transpose(0, 1), good),
    ]:
        with pytest.raises(ValueError):
            cuda_kernels.write_kv(key, value, cache, batch)


@dtypes
def test_rms_norm(cuda_kernels, reference, dtype):
    x = randn(3, 124, dtype=dtype)[:, 16:116]
    weight = randn(100, dtype=dtype, seed=1)
    out, expected = torch.empty(2, 3, 100, dtype=dtype)
    cuda_kernels.rms_norm(x, weight, 1e-5, out)
    reference.rms_norm(x, weight, 1e-5, expected)
    close(out, expected)


@dtypes
def test_rms_norm_of_each_head_in_place(cuda_kernels, reference, dtype):
    qkv = randn(3, 10 * 16, dtype=dtype)
    query = qkv[:, : 6 * 16].unflatten(-1, (6, 16))
    weight, expected = randn(16, dtype=dtype, seed=1), torch.empty(3, 6, 16, dtype=dtype)
    untouched = qkv[:, 6 * 16 :].clone()
    reference.rms_norm(query, weight, 1e-6, expected)
    cuda_kernels.rms_norm(query, weight, 1e-6, query)
    close(query, expected)
    assert torch.equal(qkv[:, 6 * 16 :], untouched)


@dtypes
def test_add_rms_norm(cuda_kernels, reference, dtype):
    x, residual = randn(4, 600, dtype=dtype), randn(4, 600, dtype=dtype, seed=1)
    weight, expected_residual = randn(600, dtype=dtype, seed=2), residual.clone()
    out, expected = torch.empty(2, 4, 600, dtype=dtype)
    cuda_kernels.add_rms_norm(x, residual, weight, 1e-5, out)
    reference.add_rms_norm(x, expected_residual, weight, 1e-5, expected)
    if dtype is not torch.bfloat16:
        assert torch.equal(residual, expected_residual)
    close(residual, expected_residual)
    close(out, expected)


@dtypes
def test_silu_and_mul(cuda_kernels, reference, dtype):
    gate_up = randn(3, 2 * 1100, dtype=dtype) * 6
    gate_up[0, :8] = torch.tensor([-6e4, -200.0, -88.0, 0.0, 88.0, 200.0, 6e4, 1.0])
    gate_up[0, 1100:1108] = 1
    out, expected = torch.empty(2, 3, 1100, dtype=dtype)
    cuda_kernels.silu_and_mul(gate_up, out)
    reference.silu_and_mul(gate_up, expected)
    close(out, expected)


def test_rows_do_not_depend_on_company(cuda_kernels):
    x, weight = randn(5, 576, dtype=torch.float32), randn(576, dtype=torch.float32, seed=1)
    out, alone = torch.empty_like(x), torch.empty(1, 576)
    cuda_kernels.rms_norm(x, weight, 1e-5, out)
    cuda_kernels.rms_norm(x[3:4], weight, 1e-5, alone)
    assert torch.equal(out[3:4], alone)


@pytest.mark.parametrize("dim, dtype", [(160, torch.bfloat16), (3, torch.int8)])
def test_blocks_are_copied_gathered_and_scattered(cuda_kernels, dim, dtype):
    cache = torch.randint(-100, 100, (9, 3, 2, 3, 5, dim)).to(dtype)
    before = cache.clone()
    cuda_kernels.copy_blocks(cache, torch.tensor([[1, 4], [1, 5], [8, 2]]))
    source = [0, 1, 8, 3, 1, 1, 6, 7, 8]
    assert torch.equal(cache, before[source])
    cuda_kernels.copy_blocks(cache, torch.empty(0, 2, dtype=torch.int64))
    assert torch.equal(cache, before[source])
    some, staged = torch.tensor([7, 0, 3]), torch.empty_like(cache[:3])
    cuda_kernels.gather_blocks(cache, some, staged)
    assert torch.equal(staged, cache[some])
    other = torch.zeros_like(cache)
    cuda_kernels.scatter_blocks(staged, some, other)
    assert torch.equal(other[some], cache[some]) and not other[[1, 2, 4, 5, 6, 8]].any()


def test_blocks_that_are_not_alike_are_refused(cuda_kernels):
    cache, some = torch.zeros(3, 2, 2, 1, 4, 8), torch.tensor([1])
    with pytest.raises(ValueError, match="alike"):
        cuda_kernels.gather_blocks(cache, some, torch.zeros(1, 2, 2, 1, 4, 4))
    with pytest.raises(ValueError, match="int64"):
        cuda_kernels.gather_blocks(cache, some.int(), torch.zeros(1, 2, 2, 1, 4, 8))
    with pytest.raises(ValueError, match="contiguous"):
        cuda_kernels.copy_blocks(cache.transpose(1, 2), torch.tensor([[1, 2]]))


def test_argmax(cuda_kernels, reference):
    x = randn(5, 108, dtype=torch.bfloat16)[:, :100]
    x[1, -1] = x[1, 7] = x.max() + 1
    x[2] = -5.0
    x[3] = float("-inf")
    x[4, [20, 30]] = float("nan")
    (found, values), (expected, largest) = cuda_kernels.argmax(x), reference.argmax(x)
    assert found.tolist() == expected.tolist() and found.dtype is torch.int64
    assert torch.equal(values.nan_to_num(nan=1e9), largest.nan_to_num(nan=1e9))
    assert values.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 17])
def test_products(cuda_kernels, reference, rows, dtype):
    x, weight = randn(rows, 70, dtype=dtype), randn(45, 70, dtype=dtype, seed=1)
    bias = randn(45, dtype=dtype, seed=2)
    for form in ("pack", "quantize"):
        for b in (None, bias):
            found, expected = (
                product(kernels, x, getattr(kernels, form)(weight), b)
                for kernels in (cuda_kernels, reference)
            )
            torch.testing.assert_close(found, expected, atol=2e-2 if dtype != torch.float32 else
                                       2e-5, rtol=TOLERANCE[dtype])  # fmt: skip


def product(kernels, x, packed, bias):
    out = torch.full((len(x), packed.outputs), float("nan"), dtype=x.dtype)
    kernels.linear(x, packed, bias, out)
    return out


def test_products_of_fp8_levels(cuda_kernels, reference):
    x, weight = randn(3, 70, dtype=torch.float16), randn(45, 70, dtype=torch.float16, seed=1)
    packed = cuda_kernels.quantize(weight, form="fp8")
    assert packed.plain is not None and packed.plain.dtype is FP8
    found, expected = (product(k, x, packed, None) for k in (cuda_kernels, reference))
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-3)
    assert torch.equal(packed.plain.float(), quantize_plain(weight, "fp8").plain.float())


def test_levels_of_slices_of_wider_matrices(cuda_kernels, reference):
    x, weight = randn(3, 201, dtype=torch.float32)[:, 31:95], randn(40, 64, dtype=torch.float32)
    out = torch.full((3, 101), 7.0)
    cuda_kernels.linear(x, cuda_kernels.quantize(weight), None, out[:, 21:61])
    assert (out[:, :21] == 7).all() and (out[:, 61:] == 7).all()
    expected = product(reference, x, reference.quantize(weight), None)
    torch.testing.assert_close(out[:, 21:61], expected, atol=2e-5, rtol=2e-6)


def test_the_gated_product_is_the_product_and_the_gate(cuda_kernels):
    x, weight = randn(3, 64, dtype=torch.float32), randn(64, 64, dtype=torch.float32, seed=1)
    for form in ("pack", "quantize"):
        packed = getattr(cuda_kernels, form)(weight, gated=True)
        out, expected = torch.empty(2, 3, 32)
        cuda_kernels.gated_linear(x, packed, None, torch.empty(3, 64), out)
        cuda_kernels.silu_and_mul(product(cuda_kernels, x, packed, None), expected)
        assert torch.equal(out, expected)


def test_products_that_do_not_fit_are_refused(cuda_kernels):
    packed = cuda_kernels.quantize(torch.ones(40, 64))
    x, out = torch.zeros(3, 64), torch.zeros(3, 40)
    for bad_x, bad_out in [(x[:, :63], out), (x, out[:2]), (x.T.contiguous().T, out)]:
        with pytest.raises(ValueError):
            cuda_kernels.linear(bad_x, packed, None, bad_out)
    with pytest.raises(TypeError):
        cuda_kernels.linear(x.bfloat16(), packed, None, out.bfloat16())
    with pytest.raises(AssertionError):
        cuda_kernels.linear(x, Packed(40, 64, x.dtype, None, scales=torch.ones(40)), None, out)
