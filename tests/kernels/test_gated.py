"""The gated product is the product and then the gate, to the last bit."""

import pytest
import torch

from octavo.kernels.cpu import CpuKernels

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
forms = pytest.mark.parametrize("form", ["pack", "quantize"])


def randn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gated(kernels, x, weight, bias=None, form="pack"):
    outputs = len(weight)
    out = torch.full((len(x), outputs // 2), float("nan"), dtype=x.dtype)
    packed = getattr(kernels, form)(weight, gated=True)
    kernels.gated_linear(x, packed, bias, x.new_empty(len(x), outputs), out)
    return out


def one_after_the_other(kernels, x, weight, bias=None, form="pack"):
    product = x.new_empty(len(x), len(weight))
    kernels.linear(x, getattr(kernels, form)(weight), bias, product)
    out = x.new_empty(len(x), len(weight) // 2)
    kernels.silu_and_mul(product, out)
    return out


@dtypes
@forms
@pytest.mark.parametrize("rows", [1, 9, 70])
@pytest.mark.parametrize("inputs, width", [(64, 96), (66, 64), (64, 48)])  # 48: no whole panels
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_same_bits_as_one_after_the_other(
    native_kernels, dtype, form, rows, inputs, width, with_bias
):
    x, weight = randn(rows, inputs, dtype=dtype), randn(2 * width, inputs, dtype=dtype, seed=1)
    bias = randn(2 * width, dtype=dtype, seed=2) if with_bias else None
    actual = gated(native_kernels, x, weight, bias, form)
    assert torch.equal(actual, one_after_the_other(native_kernels, x, weight, bias, form))


@dtypes
@forms
def test_it_is_right(kernels, reference, dtype, form):
    x, weight = randn(5, 64, dtype=dtype), randn(128, 64, dtype=dtype, seed=1)
    torch.testing.assert_close(
        gated(kernels, x, weight, form=form), gated(reference, x, weight, form=form)
    )


@dtypes
def test_a_row_is_the_same_bits_in_any_company(native_kernels, dtype):
    x, weight = randn(600, 96, dtype=dtype), randn(256, 96, dtype=dtype, seed=1)
    together = gated(native_kernels, x, weight)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for first, last in ((0, 1), (5, 21), (30, 599)):
            assert torch.equal(gated(native_kernels, x[first:last], weight), together[first:last])


def test_what_torch_multiplies_is_gated_after(best_kernels):
    kernels = CpuKernels(best_kernels.library, {torch.bfloat16: 2})
    weight = randn(128, 64, dtype=torch.bfloat16, seed=1)
    for rows in (2, 3):
        x = randn(rows, 64, dtype=torch.bfloat16)
        assert torch.equal(gated(kernels, x, weight), one_after_the_other(kernels, x, weight))


def test_panels_by_turns_serve_nothing_else(best_kernels):
    weight = randn(128, 64, dtype=torch.float32)
    x, out = randn(2, 64, dtype=torch.float32), torch.empty(2, 128)
    with pytest.raises(ValueError, match="gated_linear"):
        best_kernels.linear(x, best_kernels.pack(weight, gated=True), None, out)


def fed_forward(kernels, x, gate_up, down, form, biases=(None, None)):
    wide, gated = x.new_empty(len(x), len(gate_up)), x.new_empty(len(x), down.shape[1])
    out = torch.full((len(x), len(down)), float("nan"), dtype=x.dtype)
    first, second = (getattr(kernels, form)(*args) for args in ((gate_up, True), (down,)))
    kernels.feed_forward(x, first, biases[0], second, biases[1], wide, gated, out)
    return out


@dtypes
@forms
@pytest.mark.parametrize("rows", [1, 32, 33, 70])
@pytest.mark.parametrize("width", [96, 48])  # 48: not by tiles
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_feed_forward_layer_is_its_two_products(
    native_kernels, dtype, form, rows, width, with_bias
):
    x, gate_up = randn(rows, 64, dtype=dtype), randn(2 * width, 64, dtype=dtype, seed=1)
    down = randn(70, width, dtype=dtype, seed=2)
    sizes = (2 * width, 70) if with_bias else ()
    biases = [randn(n, dtype=dtype, seed=3) for n in sizes] or [None, None]
    expected = torch.empty(rows, 70, dtype=dtype)
    between = gated(native_kernels, x, gate_up, biases[0], form)
    native_kernels.linear(between, getattr(native_kernels, form)(down), biases[1], expected)
    actual = fed_forward(native_kernels, x, gate_up, down, form, biases)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_feed_forward_layer_of_many_rows_in_blocks(native_kernels, threads):
    """More of them than stay in a cache, of which the last block and its last tile are not full."""
    torch.set_num_threads(threads)
    x, gate_up = (randn(n, 64, dtype=torch.bfloat16, seed=n) for n in (1007, 2 * 1088))
    down = randn(32, 1088, dtype=torch.bfloat16)
    together = fed_forward(native_kernels, x, gate_up, down, "pack")
    for first, last in ((0, 1), (470, 519), (1000, 1007)):
        some = fed_forward(native_kernels, x[first:last], gate_up, down, "pack")
        assert torch.equal(together[first:last], some)


def test_a_feed_forward_layer_whose_last_product_is_torchs(best_kernels):
    kernels = CpuKernels(best_kernels.library, {torch.bfloat16: 2})
    gate_up, down = randn(128, 64, dtype=torch.bfloat16), randn(32, 64, dtype=torch.bfloat16)
    x = randn(40, 64, dtype=torch.bfloat16)
    expected = one_after_the_other(kernels, x, gate_up) @ down.T
    actual = fed_forward(kernels, x, gate_up, down, "pack")
    torch.testing.assert_close(actual, expected)
