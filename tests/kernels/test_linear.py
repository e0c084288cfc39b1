"""Matrix products with packed weights against float64, in every build, dtype and shape of tile."""

import pytest
import torch

from octavo.kernels import build
from octavo.kernels.cpu import CpuKernels
from octavo.kernels.packing import PANEL
from octavo.kernels.select import torch_above

DTYPES = [torch.float32, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


def randn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def multiply(kernels, x, weight, bias=None):
    out = torch.full((x.shape[0], weight.shape[0]), float("nan"), dtype=x.dtype)
    kernels.linear(x, kernels.pack(weight), bias, out)
    return out


def close(actual, x, weight, bias=None):
    """Within the rounding of the result and of float32 sums of as many terms."""
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    sums = x.double().abs() @ weight.double().abs().T
    last = torch.finfo(actual.dtype).eps / 2 if actual.dtype is torch.bfloat16 else 0
    bound = exact.abs() * last * 1.01 + sums * x.shape[1] ** 0.5 * 2**-23 + 1e-6
    assert ((actual.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(
    "capability, tiles, expected",
    [
        ("AMX", False, {torch.bfloat16: 8}),
        ("AMX", True, {}),
        ("AVX512_BF16", False, {}),
        ("AVX2", False, {}),
        ("DEFAULT", False, {torch.float32: 0, torch.bfloat16: 0}),
    ],
)
def test_who_multiplies(monkeypatch, capability, tiles, expected):
    monkeypatch.setattr(build, "processor", lambda: capability)
    assert torch_above(tiles) == expected


@dtypes
@pytest.mark.parametrize(
    "rows, inputs, outputs",
    [
        (0, 64, 64),
        (1, 576, 960),
        (2, 2, 1),
        (3, 64, PANEL + 1),
        (7, 66, PANEL - 1),
        (13, 576, 3 * PANEL),
        (64, 130, 100),
        (300, 1536, 72),  # more rows than are multiplied before a panel is left
    ],
)
def test_linear(kernels, rows, inputs, outputs, dtype):
    x, weight = randn(rows, inputs, dtype=dtype), randn(outputs, inputs, dtype=dtype, seed=1)
    bias = randn(outputs, dtype=dtype, seed=2) * 9
    close(multiply(kernels, x, weight), x, weight)
    close(multiply(kernels, x, weight, bias), x, weight, bias)


@dtypes
def test_each_number_of_rows(native_kernels, dtype):
    weight, x = randn(40, 64, dtype=dtype), randn(40, 64, dtype=dtype, seed=1)
    for rows in range(1, len(x) + 1):
        close(multiply(native_kernels, x[:rows], weight), x[:rows], weight)


@dtypes
def test_a_row_is_the_same_bits_in_any_company(native_kernels, dtype):
    x, weight = randn(300, 1536, dtype=dtype), randn(80, 1536, dtype=dtype, seed=1)
    bias = randn(80, dtype=dtype, seed=2)
    packed = native_kernels.pack(weight)

    def product(rows):
        out = torch.empty(len(rows), 80, dtype=dtype)
        native_kernels.linear(rows, packed, bias, out)
        return out

    whole = product(x)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for start, end in [(0, 300), (7, 8), (7, 20), (120, 137), (299, 300), (3, 200)]:
            assert torch.equal(product(x[start:end]), whole[start:end])


def test_an_output_is_one_chain_in_order(native_kernels):
    """Any other order would not lose exactly these ones beside a large number."""
    x = torch.ones(20, 6)
    weight = torch.tensor([[1.0, 2**25, 1.0, -(2**25), 1.0, 1.0]]).repeat(PANEL, 1)
    assert (multiply(native_kernels, x, weight) == 2).all()


@dtypes
def test_slices_of_wider_matrices(kernels, dtype):
    weight, wide = randn(40, 64, dtype=dtype), randn(5, 200, dtype=dtype, seed=1)
    x, out = wide[:, 30:94], torch.full((5, 100), 7.0, dtype=dtype)
    kernels.linear(x, kernels.pack(weight), None, out[:, 20:60])
    close(out[:, 20:60], x, weight)
    assert (out[:, :20] == 7).all() and (out[:, 60:] == 7).all()
    columns = randn(64, 40, dtype=dtype).T  # packing reads any layout
    close(multiply(kernels, x, columns), x, columns)


def test_a_pair_cut_in_half_goes_to_torch(kernels):
    x, weight = randn(3, 33, dtype=torch.bfloat16), randn(8, 33, dtype=torch.bfloat16)
    close(multiply(kernels, x, weight), x, weight)


@dtypes
def test_nothing_is_held_twice(best_kernels, dtype):
    packed = best_kernels.pack(randn(PANEL * 2, 64, dtype=dtype))
    assert packed.plain is None and packed.panels is not None
    assert packed.panels.nbytes == PANEL * 2 * 64 * dtype.itemsize


def test_more_rows_go_to_torch_where_it_is_faster():
    library = build.library()
    assert library is not None
    kernels = CpuKernels(library, {torch.bfloat16: 8, torch.float32: 0})
    weight, x = randn(64, 64, dtype=torch.bfloat16), randn(9, 64, dtype=torch.bfloat16, seed=1)
    packed = kernels.pack(weight)
    assert packed.plain is weight and packed.panels is not None
    out = torch.empty(9, 64, dtype=torch.bfloat16)
    packed.panels.zero_()
    kernels.linear(x, packed, None, out)
    close(out, x, weight)
    kernels.linear(x[:8], packed, None, out[:8])
    assert (out[:8] == 0).all()
    assert kernels.pack(weight.float()).panels is None


def test_what_does_not_fit_is_refused(best_kernels):
    packed = best_kernels.pack(torch.zeros(40, 64))
    x, out = torch.zeros(3, 64), torch.zeros(3, 40)
    for bad_x, bias, bad_out in [
        (x[:, :62], None, out),
        (x, None, out[:2]),
        (x, None, out[:, :39]),
        (x, torch.zeros(39), out),
        (x.T.contiguous().T, None, out),
    ]:
        with pytest.raises(ValueError):
            best_kernels.linear(bad_x, packed, bias, bad_out)
    with pytest.raises(TypeError):
        best_kernels.linear(x.bfloat16(), packed, None, out.bfloat16())
    pairs = best_kernels.pack(torch.zeros(32, 32).bfloat16())
    with pytest.raises(ValueError, match="66 bytes"):
        best_kernels.linear(torch.zeros(3, 33).bfloat16()[:, :32], pairs, None, out[:, :32])
