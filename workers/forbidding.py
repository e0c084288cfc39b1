"""Masks as what is to be done to logits, worked out ahead of them.

A row's mask either lets few tokens through or bars few, so the lists of either are short, while a
pass over all of a vocabulary's logits takes longer than choosing from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NOTHING = float("-inf")


@dataclass(frozen=True, slots=True)
class Cells:
    """Some logits, by row and token: int64 tensors of one length."""

    rows: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, found: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> Cells:
        """All tokens of each (row, tokens)."""
        each = list(found)
        rows = [np.full(len(tokens), row, np.int64) for row, tokens in each]
        none = [np.zeros(0, np.int64)]
        return cls(
            torch.from_numpy(np.concatenate(rows or none)),
            torch.from_numpy(np.concatenate([tokens for _, tokens in each] or none)),
        )

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return (
            self.rows.to(device, non_blocking=True),
            self.tokens.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Forbidding:
    """Of the rows `cleared` only `kept` is left; of the other rows `barred` goes."""

    cleared: Tensor
    kept: Cells
    barred: Cells

    @classmethod
    def of(cls, masks: Iterable[tuple[int, npt.NDArray[np.int32]]], vocabulary: int) -> Forbidding:
        """From each (row, bits): bit t says whether token t is let through."""
        kept, barred = [], []
        for row, mask in masks:
            bits = np.unpackbits(mask.view(np.uint8), count=vocabulary, bitorder="little")
            allowed = bits.view(np.bool_)  # which numpy counts and searches much sooner
            if np.count_nonzero(allowed) * 2 < vocabulary:
                kept.append((row, allowed.nonzero()[0]))
            else:
                barred.append((row, (~allowed).nonzero()[0]))
        cleared = torch.tensor([row for row, _ in kept], dtype=torch.int64)
        return cls(cleared, Cells.of(kept), Cells.of(barred))

    def apply(self, logits: Tensor) -> None:
        """Changes `[rows, vocabulary]` logits of any dtype in place."""
        device = logits.device
        if len(self.cleared):
            kept = self.kept.on(device)
            values = logits[kept]
            logits.index_fill_(0, self.cleared.to(device, non_blocking=True), NOTHING)
            logits[kept] = values
        if len(self.barred.rows):
            logits[self.barred.on(device)] = NOTHING
