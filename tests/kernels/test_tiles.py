"""Matrix products by AMX's tiles; where there are none, their software twin stands in for them."""

import pytest
import torch

from octavo.kernels import build
from octavo.kernels.cpu import CpuKernels, has_tiles
from tests.kernels.conftest import TWIN, native


@pytest.fixture(params=[TWIN, "AMX"])
def tiled(request):
    """Kernels with tiles: in software, and where there are any the processor's own."""
    kernels = native(request.param)
    if not has_tiles(kernels.library):
        pytest.skip("the system lends no tiles")
    return kernels


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def multiply(kernels, x, packed, bias=None):
    out = torch.full((len(x), packed.outputs), float("nan"), dtype=torch.bfloat16)
    kernels.linear(x, packed, bias, out)
    return out


def close(actual, x, weight, bias):
    exact = x.double() @ weight.double().T + bias.double()
    sums = x.double().abs() @ weight.double().abs().T
    bound = exact.abs() * 2**-8 * 1.01 + sums * x.shape[1] ** 0.5 * 2**-23 + 1e-6
    assert ((actual.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("inputs, outputs", [(32, 32), (64, 70), (576, 40)])
def test_the_product_is_right(tiled, rows, inputs, outputs):
    x = random(rows, inputs + 6, seed=rows)[:, :inputs]  # rows that lie apart
    weight, bias = random(outputs, inputs, seed=1), random(outputs, seed=2)
    close(multiply(tiled, x, tiled.pack(weight), bias), x, weight, bias)


@pytest.mark.parametrize("inputs", [96, 1536])
@pytest.mark.parametrize("form", ["pack", "quantize"])
def test_a_row_is_the_same_bits_in_any_company(tiled, inputs, form):
    x, packed = random(70, inputs, seed=3), getattr(tiled, form)(random(100, inputs, seed=4))
    together = multiply(tiled, x, packed)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for first, last in ((0, 1), (5, 21), (30, 63)):
            assert torch.equal(multiply(tiled, x[first:last], packed), together[first:last])


def test_int8_weights_are_multiplied_as_they_are_without_tiles(tiled):
    plain = CpuKernels(build.library("AVX512_BF16"))
    x, weight = random(40, 128, seed=5), random(50, 128, seed=6)
    ours, theirs = (multiply(k, x, k.quantize(weight)) for k in (tiled, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=2**-7)


def test_inputs_that_fill_no_tile_are_multiplied_without(tiled):
    x, weight, bias = random(20, 50, seed=7), random(40, 50, seed=8), random(40, seed=9)
    plain = CpuKernels(build.library("AVX512_BF16"))
    actual = multiply(tiled, x, tiled.pack(weight), bias)
    assert torch.equal(actual, multiply(plain, x, plain.pack(weight), bias))


def test_the_twin_says_that_it_has_tiles(tiled):
    assert has_tiles(tiled.library)
