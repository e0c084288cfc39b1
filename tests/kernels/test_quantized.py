"""Int8 weights: what becomes of them, and their products, in every build, dtype and path."""

import pytest
import torch

from octavo.kernels import build
from octavo.kernels.cpu import CpuKernels
from octavo.kernels.packing import PANEL
from octavo.kernels.quantized import quantize_rows

DTYPES = [torch.float32, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


def randn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def multiply(kernels, x, packed, bias=None):
    out = torch.full((x.shape[0], packed.outputs), float("nan"), dtype=x.dtype)
    kernels.linear(x, packed, bias, out)
    return out


def close(actual, x, weight, bias=None):
    """Within the rounding of the result and of float32 sums, of what the levels stand for."""
    levels, scales = quantize_rows(weight)
    rounded = levels.double() * scales.double()[:, None]
    exact = x.double() @ rounded.T + (0 if bias is None else bias.double())
    sums = x.double().abs() @ rounded.abs().T
    last = torch.finfo(actual.dtype).eps / 2 if actual.dtype is torch.bfloat16 else 0
    bound = exact.abs() * last * 1.01 + sums * (x.shape[1] ** 0.5 + 1) * 2**-23 + 1e-6
    assert ((actual.double() - exact).abs() <= bound).all()


@dtypes
def test_levels_are_the_nearest(dtype):
    weight = randn(40, 70, dtype=dtype) * torch.logspace(-6, 6, 40)[:, None].to(dtype)
    levels, scales = quantize_rows(weight)
    assert (levels.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert (levels.abs().amax(1) == 127).all()
    error = (levels.double() * scales.double()[:, None] - weight.double()).abs()
    assert (error <= scales.double()[:, None] * (0.5 + 1e-5)).all()


def test_levels_of_extremes():
    tiny, huge = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
    rows = [[0.0, 0.0], [tiny / 2**23, 0.0], [huge, -huge], [127.0, -126.5], [-1.0, 0.0]]
    levels, scales = quantize_rows(torch.tensor(rows))
    assert levels.tolist() == [[0, 0], [0, 0], [127, -127], [127, -126], [-127, 0]]
    assert scales.tolist() == pytest.approx([0, 0, huge / 127, 1, 1 / 127], rel=1e-6)


@dtypes
@pytest.mark.parametrize(
    "rows, inputs, outputs",
    [
        (0, 64, 64),
        (1, 576, 960),
        (1, 1, 1),
        (2, 2, 1),
        (3, 33, PANEL + 1),
        (7, 66, PANEL - 1),
        (13, 577, 3 * PANEL),
        (64, 130, 100),
        (300, 1535, 72),  # more rows than are multiplied before a panel is left
    ],
)
def test_linear(kernels, reference, rows, inputs, outputs, dtype):
    x, weight = randn(rows, inputs, dtype=dtype), randn(outputs, inputs, dtype=dtype, seed=1)
    weight[outputs // 2] = 0
    bias = randn(outputs, dtype=dtype, seed=2) * 9
    packed = kernels.quantize(weight)
    found = multiply(kernels, x, packed, bias)
    close(multiply(kernels, x, packed), x, weight)
    close(found, x, weight, bias)
    assert (found[:, outputs // 2] == bias[outputs // 2]).all()
    slow = multiply(reference, x, reference.quantize(weight), bias)
    close(slow, x, weight, bias)


@dtypes
@pytest.mark.parametrize("inputs", [64, 66])
def test_whole_levels_give_the_bits_of_the_weight_itself(native_kernels, dtype, inputs):
    """With a scale of one nothing but the way of reading differs, for each number of rows."""
    levels = torch.randint(-127, 128, (40, inputs), generator=torch.Generator().manual_seed(0))
    levels[:, 0] = 127
    weight, x = levels.to(dtype), randn(40, inputs, dtype=dtype, seed=1)
    packed, plain = native_kernels.quantize(weight), native_kernels.pack(weight)
    bias = randn(40, dtype=dtype, seed=2)
    for rows in range(1, len(x) + 1):
        expected = multiply(native_kernels, x[:rows], plain, bias)
        assert torch.equal(multiply(native_kernels, x[:rows], packed, bias), expected)


@dtypes
@pytest.mark.parametrize("inputs", [1536, 577])
def test_a_row_is_the_same_bits_in_any_company(native_kernels, dtype, inputs):
    """Alone it meets a panel that is widened in passing, among many one widened beforehand."""
    x, weight = randn(300, inputs, dtype=dtype), randn(80, inputs, dtype=dtype, seed=1)
    bias = randn(80, dtype=dtype, seed=2)
    packed = native_kernels.quantize(weight)
    whole = multiply(native_kernels, x, packed, bias)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for start, end in [(0, 300), (7, 8), (7, 15), (7, 20), (120, 137), (299, 300), (3, 200)]:
            found = multiply(native_kernels, x[start:end], packed, bias)
            assert torch.equal(found, whole[start:end])


@dtypes
def test_slices_of_wider_matrices(kernels, dtype):
    weight, wide = randn(40, 64, dtype=dtype), randn(5, 201, dtype=dtype, seed=1)
    x, out = wide[:, 31:95], torch.full((5, 101), 7.0, dtype=dtype)
    kernels.linear(x, kernels.quantize(weight), None, out[:, 21:61])
    close(out[:, 21:61], x, weight)
    assert (out[:, :21] == 7).all() and (out[:, 61:] == 7).all()
    columns = randn(64, 40, dtype=dtype).T  # quantizing reads any layout
    close(multiply(kernels, x, kernels.quantize(columns)), x, columns)


@dtypes
def test_what_lies_behind_a_row_is_not_read(native_kernels, dtype):
    wide = torch.full((9, 8), float("nan"), dtype=dtype)
    wide[:, :5] = 1
    packed = native_kernels.quantize(torch.ones(PANEL, 5, dtype=dtype))
    for rows in (1, 9):
        assert (multiply(native_kernels, wide[:rows, :5], packed) == 5).all()


@dtypes
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_shows(kernels, dtype, wrong):
    weight = randn(40, 64, dtype=dtype)
    weight[3, 5] = wrong
    out = multiply(kernels, randn(2, 64, dtype=dtype, seed=1), kernels.quantize(weight))
    assert not out[:, 3].isfinite().any()
    assert out[:, :3].isfinite().all() and out[:, 4:].isfinite().all()


@dtypes
def test_a_byte_a_weight(best_kernels, dtype):
    packed = best_kernels.quantize(randn(PANEL * 2, 64, dtype=dtype))
    assert packed.plain is None and packed.panels is not None and packed.scales is not None
    assert packed.panels.nbytes == PANEL * 2 * 64
    assert packed.scales.nbytes == PANEL * 2 * 4


def test_no_number_of_rows_goes_to_torch():
    library = build.library()
    assert library is not None
    kernels = CpuKernels(library, {torch.bfloat16: 8, torch.float32: 0})
    for dtype in DTYPES:
        weight, x = randn(64, 64, dtype=dtype), randn(20, 64, dtype=dtype, seed=1)
        packed = kernels.quantize(weight)
        assert packed.plain is None
        close(multiply(kernels, x, packed), x, weight)


def test_what_does_not_fit_is_refused(best_kernels):
    packed = best_kernels.quantize(torch.ones(40, 64))
    x, out = torch.zeros(3, 64), torch.zeros(3, 40)
    for bad_x, bias, bad_out in [
        (x[:, :63], None, out),
        (x, None, out[:2]),
        (x, torch.zeros(39), out),
        (x.T.contiguous().T, None, out),
    ]:
        with pytest.raises(ValueError):
            best_kernels.linear(bad_x, packed, bias, bad_out)
    with pytest.raises(TypeError):
        best_kernels.linear(x.bfloat16(), packed, None, out.bfloat16())
