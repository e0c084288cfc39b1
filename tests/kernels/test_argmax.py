"""The likeliest token of each row of logits."""

import pytest
import torch

WIDTHS = [1, 3, 16, 17, 100, 49_152]
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_of_the_largest(kernels, reference, width, dtype):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(6, width + 8, generator=generator).to(dtype)[:, :width]  # rows that lie apart
    x[1, -1] = x[2, 0] = x.max() + 1
    x[3] = -5.0  # all alike
    x[4] = -INFINITY
    indices, values = kernels.argmax(x)
    expected, largest = reference.argmax(x)
    assert indices.tolist() == expected.tolist() and indices.dtype is torch.int64
    assert torch.equal(values, largest) and values.dtype is torch.float32
    assert indices.tolist()[1:5] == [width - 1, 0, 0, 0]


@pytest.mark.parametrize("place", [0, 5, 15, 16, 39])
def test_a_nan_is_above_all(kernels, place):
    x = torch.zeros(2, 40)
    x[0, 20], x[0, place] = INFINITY, NAN
    x[0, 39] = NAN
    indices, values = kernels.argmax(x)
    assert indices.tolist() == [place, 0]
    assert values[0].isnan() and values[1] == 0


def test_threads_do_not_change_the_answer(best_kernels):
    x = torch.randn(40, 9000, generator=torch.Generator().manual_seed(1)).bfloat16()
    alone = best_kernels.argmax(x)
    torch.set_num_threads(3)
    assert all(map(torch.equal, best_kernels.argmax(x), alone))


def test_rows_without_numbers_are_refused(native_kernels):
    with pytest.raises(ValueError, match="no largest"):
        native_kernels.argmax(torch.empty(2, 0))
