"""Log-probabilities under the model's own distribution, before anything is done to the logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.scheduler.request import Logprob

LOWEST = -9999.0  # stands for minus infinity and NaN, which JSON cannot say


def describe(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[Logprob]:
    """One entry for each row of float32 `[rows, vocabulary]` raw logits: of its token, and of as
    many of the likeliest as `tops` says."""
    largest = logits.max(-1, keepdim=True).values
    total = logits.sub(largest).exp_().sum(-1, keepdim=True, dtype=torch.float64).log()
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    own = logits.gather(-1, chosen)
    ranks = (logits > own).sum(-1) + 1
    own_logprobs = _finite(own.double() - largest - total)[:, 0].tolist()
    most = min(max(tops, default=0), logits.shape[1])
    values, ids = logits.topk(most, dim=-1)
    top_logprobs = _finite(values.double() - largest - total).tolist()
    return [
        Logprob(token, logprob, rank, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, rank, row_ids, row_values, top in zip(
            tokens, own_logprobs, ranks.tolist(), ids.tolist(), top_logprobs, tops, strict=True
        )
    ]


def _finite(logprobs: Tensor) -> Tensor:
    return logprobs.nan_to_num(nan=LOWEST, neginf=LOWEST, posinf=LOWEST).clamp_(min=LOWEST)
