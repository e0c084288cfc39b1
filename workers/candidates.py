"""The tokens that a beam may go on with: the likeliest of a row, in an order that is always the
same."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.workers.choose import likeliest

Candidates = list[tuple[int, float]]
"""(token, logprob), likeliest first, lower ids first among equals."""


def name_candidates(scores: Tensor, counts: Sequence[int]) -> list[Candidates]:
    """`counts[i]` candidates from each row of `[rows, vocabulary]` scores, or the whole vocabulary
    if that is less. None at all for a row whose best score is not finite."""
    vocabulary = scores.shape[1]
    number = min(max(counts), vocabulary)
    values, ids = likeliest(scores, number)
    last = values[:, -1:]
    unsure = ((scores >= last).sum(-1) > number).nonzero()[:, 0]
    if len(unsure):
        ordered = scores[unsure].sort(dim=-1, descending=True, stable=True)
        values[unsure], ids[unsure] = ordered.values[:, :number], ordered.indices[:, :number]
    fit = values[:, 0].isfinite().tolist()
    return [
        list(zip(row_ids[:count], row_values[:count], strict=True)) if sound else []
        for row_ids, row_values, count, sound in zip(
            ids.tolist(), values.tolist(), counts, fit, strict=True
        )
    ]
