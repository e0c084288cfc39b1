"""The two forms of a weight in its own dtype: plain, for torch's product, and panels for `csrc`.

A panel is `[words, PANEL]` 32-bit words of PANEL outputs: a float32 each, or two bfloat16 of
neighbouring inputs. 16 columns of it are a tile of AMX, so the same form can serve there. Outputs
are padded with zeros to a whole panel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.kernels.base import Packed
from octavo.kernels.memory import prefer_huge_pages

PANEL = 32
CHUNK = 8 * 2**20  # words, 32 MiB


def pack_plain(weight: Tensor) -> Packed:
    """The weight itself, for `linear_plain`."""
    outputs, inputs = weight.shape
    return Packed(outputs, inputs, weight.dtype, weight)


def linear_plain(x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
    """`Kernels.linear` by torch, whose sums run in the order that its library likes at a shape."""
    assert weight.plain is not None, "a weight must be packed by the kernels that multiply it"
    if weight.scales is not None:
        sums = x.float() @ weight.plain.float().T * weight.scales
        out.copy_(sums if bias is None else sums + bias.float())
    elif bias is None:
        torch.mm(x, weight.plain.T, out=out)
    else:
        torch.addmm(bias, x, weight.plain.T, out=out)


def fits_panels(weight: Tensor) -> bool:
    """Whether a row of an `[outputs, inputs]` weight is made of whole words."""
    return weight.shape[1] * weight.element_size() % 4 == 0


class Arena:
    """Memory for panels, in chunks that the system may back by huge pages.

    Most weights are too small to hold many such pages of their own, and without them a step of few
    rows takes a tenth longer. Weights lie in the order in which they are packed, and so read.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.int32)

    def take(self, *shape: int) -> Tensor:
        """int32, not initialised."""
        count = math.prod(shape)
        if count > len(self._free):
            self._free = torch.empty(max(count, CHUNK), dtype=torch.int32)
            prefer_huge_pages(self._free)
        taken, self._free = self._free[:count], self._free[count:]
        return taken.view(shape)


def fits_gate(weight: Tensor) -> bool:
    """Whether each half of the outputs is whole panels."""
    return weight.shape[0] % (2 * PANEL) == 0


def by_turns(weight: Tensor) -> Tensor:
    """A panel's rows of the first half of the outputs, then of the second, and so on."""
    halves = weight.view(2, -1, PANEL, *weight.shape[1:])
    return halves.transpose(0, 1).reshape(weight.shape)


def pack_panels(weight: Tensor, arena: Arena, keep_plain: bool, gated: bool = False) -> Packed:
    """A float32 or bfloat16 weight in panels: int32 `[panels, words, PANEL]`; those of the halves
    by turns if `gated`, which `fits_gate` allows."""
    outputs, inputs = weight.shape
    ordered = by_turns(weight) if gated else weight
    rows = ordered.contiguous().view(torch.int32)
    words = rows.shape[1]
    whole, rest = divmod(outputs, PANEL)
    panels = arena.take(whole + (rest > 0), words, PANEL)
    panels[:whole] = rows[: whole * PANEL].view(whole, PANEL, words).transpose(1, 2)
    if rest:
        panels[whole].zero_()[:, :rest] = rows[-rest:].T
    return Packed(
        outputs, inputs, weight.dtype, weight if keep_plain else None, panels, None, gated
    )
