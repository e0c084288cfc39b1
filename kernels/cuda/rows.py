"""What is computed row by row: norms, and the gate. Sums are float32, in an order that only a row's
width decides."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.cuda.options import FUSED

GATE_BLOCK = 1024  # numbers of a row, for one program
NARROW = 512  # rows up to this wide are normed by one warp


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    x_token,
    x_head,
    residual_token,
    out_token,
    out_head,
    heads,
    width,
    eps,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token, head = row // heads, row % heads
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    kind = x.dtype.element_ty
    given = tl.load(x + token * x_token + head * x_head + columns, mask=mask, other=0.0)
    wide = given.to(tl.float32)
    if ADD:
        kept = residual + token * residual_token + columns
        total = (wide + tl.load(kept, mask=mask, other=0.0).to(tl.float32)).to(kind)
        tl.store(kept, total, mask=mask)
        wide = total.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / width
    normed = (wide * (1.0 / tl.sqrt(mean + eps))).to(kind).to(tl.float32)
    scaled = normed * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * out_token + head * out_head + columns, scaled.to(kind), mask=mask)


@triton.jit
def _silu_and_mul(gate_up, out, row_stride, out_row, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    place = gate_up + row * row_stride + columns
    gate = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=mask, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # at most 1, where exp(-gate) may overflow
    sigmoid = tl.where(gate < 0, small, 1.0) / (1.0 + small)
    product = (gate * sigmoid * up).to(out.dtype.element_ty)
    tl.store(out + row * out_row + columns, product, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`Kernels.rms_norm`."""
    heads = x.shape[1] if x.dim() == 3 else 1
    if x.shape != out.shape or x.stride(-1) != 1 or out.stride(-1) != 1:
        raise ValueError(
            f"cannot norm {list(x.shape)} of strides {x.stride()} into {list(out.shape)} of "
            f"strides {out.stride()}"
        )
    _launch_norm(x, x, weight, eps, out, heads, add=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`Kernels.add_rms_norm`."""
    for other in (residual, out):
        if x.shape != other.shape or other.stride(-1) != 1 or x.stride(-1) != 1:
            raise ValueError(f"shapes {[list(y.shape) for y in (x, residual, out)]} do not fit")
    _launch_norm(x, residual, weight, eps, out, 1, add=True)


def silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """`Kernels.silu_and_mul`."""
    rows, width = out.shape
    if gate_up.shape != (rows, 2 * width) or gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(f"{list(gate_up.shape)} does not fit {list(out.shape)}")
    if rows:
        _silu_and_mul[rows, triton.cdiv(width, GATE_BLOCK)](
            gate_up, out, gate_up.stride(0), out.stride(0), width, BLOCK=GATE_BLOCK, **FUSED
        )


def _launch_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor, heads: int, add: bool
) -> None:
    width = x.shape[-1]
    if weight.shape != (width,):
        raise ValueError(f"a weight of {list(weight.shape)} does not fit rows of {width}")
    rows = x.shape[0] * heads
    if rows:
        _rms_norm[rows,](
            x,
            residual,
            weight,
            out,
            x.stride(0),
            x.stride(1),
            residual.stride(0),
            out.stride(0),
            out.stride(1),
            heads,
            width,
            eps,
            BLOCK=triton.next_power_of_2(width),
            ADD=add,
            num_warps=1 if width <= NARROW else 8,
            **FUSED,
        )
