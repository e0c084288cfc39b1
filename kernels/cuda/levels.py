"""Products with weights of one byte: levels that are widened where they are multiplied, so that a
step of few rows reads half the memory that a bfloat16 weight takes.

Levels are exact in every dtype that is computed in; sums are float32, scaled once in the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.base import Packed
from octavo.kernels.cuda.options import FUSED

INPUTS = 64  # of a step along the sums: the same for any number of rows, so that their order is
FEW_ROWS = 16


@triton.jit(do_not_specialize=["rows"])  # which would compile it anew for one row
def _linear(
    x,
    levels,
    scales,
    bias,
    out,
    rows,
    inputs,
    outputs,
    x_row,
    levels_row,
    out_row,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    column = tl.arange(0, INPUTS)
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, inputs, INPUTS):
        at = first + column
        mask = (row < rows)[:, None] & (at < inputs)[None, :]
        left = tl.load(x + row[:, None] * x_row + at[None, :], mask=mask, other=0.0)
        mask = (output < outputs)[None, :] & (at < inputs)[:, None]
        right = tl.load(levels + output[None, :] * levels_row + at[:, None], mask=mask, other=0.0)
        sums += tl.dot(left, right.to(left.dtype), input_precision="ieee")
    known = output < outputs
    sums = sums * tl.load(scales + output, mask=known, other=0.0)[None, :]
    if BIASED:
        sums += tl.load(bias + output, mask=known, other=0.0).to(tl.float32)[None, :]
    place = out + row[:, None] * out_row + output[None, :]
    tl.store(place, sums.to(out.dtype.element_ty), mask=(row < rows)[:, None] & known[None, :])


def linear(x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
    """`Kernels.linear` of a weight with levels and scales."""
    levels, scales = weight.plain, weight.scales
    assert levels is not None and scales is not None, "a weight of levels must be quantized"
    rows = len(x)
    if x.shape != (rows, weight.inputs) or out.shape != (rows, weight.outputs):
        raise ValueError(
            f"{list(x.shape)} and {list(out.shape)} do not fit a weight of "
            f"{[weight.outputs, weight.inputs]}"
        )
    if x.dtype is not weight.dtype or out.dtype is not weight.dtype:
        raise TypeError(f"dtypes differ: {[x.dtype, weight.dtype, out.dtype]}")
    if x.stride(1) != 1 or out.stride(1) != 1 or levels.stride(1) != 1:
        raise ValueError(f"rows must be contiguous, not of strides {x.stride()}, {out.stride()}")
    if not rows:
        return
    few = rows <= FEW_ROWS
    tile_rows, tile_outputs = (FEW_ROWS, 32) if few else (64, 64)
    if x.dtype is torch.float32:
        tile_outputs = 32
    _linear[triton.cdiv(weight.outputs, tile_outputs), triton.cdiv(rows, tile_rows)](
        x,
        levels,
        scales,
        scales if bias is None else bias,
        out,
        rows,
        weight.inputs,
        weight.outputs,
        x.stride(0),
        levels.stride(0),
        out.stride(0),
        BIASED=bias is not None,
        ROWS=tile_rows,
        OUTPUTS=tile_outputs,
        INPUTS=INPUTS,
        **FUSED,
    )
