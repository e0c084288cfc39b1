"""Norms and gated SiLU against the reference and transformers."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])


def close(actual, expected):
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def randn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dtypes
@pytest.mark.parametrize("rows, width", [(1, 8), (3, 576), (200, 100), (2, 4096)])
def test_rms_norm(kernels, reference, rows, width, dtype):
    x = randn(rows, width + 24, dtype=dtype)[:, 16 : 16 + width]  # a strided view
    weight = randn(width, dtype=dtype, seed=1)
    out, expected = torch.empty(2, rows, width, dtype=dtype)
    kernels.rms_norm(x, weight, 1e-5, out)
    reference.rms_norm(x, weight, 1e-5, expected)
    close(out, expected)


@dtypes
def test_rms_norm_matches_transformers(kernels, dtype):
    x, weight = randn(7, 576, dtype=dtype), randn(576, dtype=dtype, seed=1)
    theirs = LlamaRMSNorm(576, eps=1e-5).to(dtype)
    theirs.weight.data = weight
    out = torch.empty_like(x)
    kernels.rms_norm(x, weight, 1e-5, out)
    with torch.no_grad():
        close(out, theirs(x))


@dtypes
def test_rms_norm_of_each_head_in_place(kernels, reference, dtype):
    qkv = randn(5, 10 * 16, dtype=dtype)
    query = qkv[:, : 6 * 16].unflatten(-1, (6, 16))
    weight, expected = randn(16, dtype=dtype, seed=1), torch.empty(5, 6, 16, dtype=dtype)
    untouched = qkv[:, 6 * 16 :].clone()
    reference.rms_norm(query, weight, 1e-6, expected)
    kernels.rms_norm(query, weight, 1e-6, query)
    close(query, expected)
    assert torch.equal(qkv[:, 6 * 16 :], untouched)


@dtypes
@pytest.mark.parametrize("rows, width", [(1, 576), (150, 72)])
def test_add_rms_norm(kernels, reference, rows, width, dtype):
    x, residual = randn(rows, width, dtype=dtype), randn(rows, width, dtype=dtype, seed=1)
    weight, expected_residual = randn(width, dtype=dtype, seed=2), residual.clone()
    out, expected = torch.empty(2, rows, width, dtype=dtype)
    kernels.add_rms_norm(x, residual, weight, 1e-5, out)
    reference.add_rms_norm(x, expected_residual, weight, 1e-5, expected)
    assert torch.equal(residual, expected_residual)
    close(out, expected)


@dtypes
@pytest.mark.parametrize("rows, width", [(1, 1536), (64, 200), (3, 8)])
def test_silu_and_mul(kernels, reference, rows, width, dtype):
    gate_up = randn(rows, 2 * width, dtype=dtype) * 6
    out, expected = torch.empty(2, rows, width, dtype=dtype)
    kernels.silu_and_mul(gate_up, out)
    reference.silu_and_mul(gate_up, expected)
    close(out, expected)


@dtypes
def test_silu_of_extremes(kernels, dtype):
    gate = torch.tensor([[-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30, 1.0]], dtype=dtype)
    out = torch.empty(1, 8, dtype=dtype)
    kernels.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1), out)
    close(out, torch.nn.functional.silu(gate))


@dtypes
def test_rows_do_not_depend_on_company_or_threads(best_kernels, dtype):
    x, weight = randn(300, 576, dtype=dtype), randn(576, dtype=dtype, seed=1)
    out, alone = torch.empty_like(x), torch.empty(1, 576, dtype=dtype)
    best_kernels.rms_norm(x, weight, 1e-5, out)
    best_kernels.rms_norm(x[123:124], weight, 1e-5, alone)
    assert torch.equal(out[123:124], alone)
