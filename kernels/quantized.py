"""Weights of a byte: int8 levels from -127 to 127, or FP8 ones up to 448, and a float32 scale for
each output.

The two forms again: plain levels `[outputs, inputs]`, and panels, which `csrc/panel.h` reads. A
panel is `[inputs, PANEL]` int8 levels, so two inputs of it are a cache line; zeros fill it up to an
even number of inputs and a whole number of outputs.

Levels are exact in bfloat16 and in float32: a product's sums are as exact as those of any weight
of these types, and are scaled once, before they are rounded.

FP8 is e4m3: four bits of exponent, three of mantissa, no infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.base import Packed
from octavo.kernels.packing import PANEL, Arena, by_turns

LEVELS = 127
FP8, FP8_MOST = torch.float8_e4m3fn, 448.0


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest int8 levels `[outputs, inputs]`, and float32 scales `[outputs]`, by which each
    output's largest weight is level 127: 0 for zeros, and not finite where a weight is not, so that
    the results show it."""
    wide = weight.float()
    scales = wide.abs().amax(1) / LEVELS
    levels = wide / scales.where(scales > 0, 1)[:, None]
    return levels.round_().clamp_(-LEVELS, LEVELS).nan_to_num_().to(torch.int8), scales


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in the dtype of a cache. What has no room in FP8 becomes its largest number."""
    return x.float().clamp(-FP8_MOST, FP8_MOST).to(dtype) if dtype is FP8 else x


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_rows`, but the nearest FP8 levels, of which each output's largest is 448."""
    wide = weight.float()
    scales = wide.abs().amax(1) / FP8_MOST
    return narrowed(wide / scales.where(scales > 0, 1)[:, None], FP8), scales


def quantize_plain(weight: Tensor, form: str = "int8") -> Packed:
    """Plain levels, for `linear_plain`."""
    outputs, inputs = weight.shape
    levels, scales = quantize_rows(weight) if form == "int8" else round_rows(weight)
    return Packed(outputs, inputs, weight.dtype, levels, scales=scales)


def quantize_panels(weight: Tensor, arena: Arena, gated: bool = False) -> Packed:
    """Panels of levels: int8 `[panels, inputs, PANEL]`; `gated` as in `pack_panels`."""
    outputs, inputs = weight.shape
    levels, scales = quantize_rows(weight)
    count, width = -(-outputs // PANEL), -(-inputs // 2) * 2
    padded = levels.new_zeros(count * PANEL, width)
    padded[:outputs, :inputs] = by_turns(levels) if gated else levels
    panels = arena.take(count, width, PANEL // 4).view(torch.int8)
    panels.copy_(padded.view(count, PANEL, width).transpose(1, 2))
    return Packed(outputs, inputs, weight.dtype, None, panels, scales, gated)
