"""From logits to tokens, for a whole step at once; the order of operations is vLLM's.

Log-probabilities are of the raw logits. Then bias, forbidden ends and penalties; greedy rows take
the likeliest token; the others go through temperature, top-k, top-p and min-p to a draw that
depends on seed and position alone.

A row whose logits have no finite maximum (a NaN, or nothing left to choose) does not disturb the
others: it gets its likeliest proper number, and is named in `Sampled.faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from octavo.scheduler.mirror import Row
from octavo.scheduler.request import Logprob
from octavo.workers.adjust import Adjuster, is_adjusted
from octavo.workers.choose import (
    choose_despite_faults,
    choose_greedy,
    choose_random,
    is_greedy,
)
from octavo.workers.logprobs import describe


@dataclass(frozen=True, slots=True)
class Sampled:
    """`logprobs` is empty where nobody asked, else parallel to `tokens`. `faults` are indices into
    `tokens` of rows whose logits were not fit to choose from."""

    tokens: list[int]
    logprobs: list[Logprob | None]
    faults: list[int]


class Sampler:
    def __init__(self) -> None:
        self._adjuster = Adjuster()

    def sample(self, logits: Tensor, numbers: Sequence[int], rows: Mapping[int, Row]) -> Sampled:
        """Chooses the next token of row `numbers[i]` from `logits[i]`, float32 `[n, vocabulary]`,
        which is overwritten. The token will be appended at index `len(row.tokens)`."""
        batch = [rows[number] for number in numbers]
        self._adjuster.forget_all_but(rows)
        described = [i for i, row in enumerate(batch) if row.sampling.logprobs is not None]
        adjusted = [i for i, row in enumerate(batch) if is_adjusted(row)]
        raw = logits[described] if described else None
        if adjusted:
            subset = logits[adjusted]
            self._adjuster.apply(
                subset, [numbers[i] for i in adjusted], [batch[i] for i in adjusted]
            )
            logits[adjusted] = subset
        tokens, faults = self._choose(logits, batch)
        logprobs: list[Logprob | None] = []
        if raw is not None:
            logprobs = [None] * len(batch)
            tops = [batch[i].sampling.logprobs or 0 for i in described]
            entries = describe(raw, [tokens[i] for i in described], tops)
            for i, entry in zip(described, entries, strict=True):
                logprobs[i] = entry
        return Sampled(tokens, logprobs, faults)

    def _choose(self, logits: Tensor, batch: Sequence[Row]) -> tuple[list[int], list[int]]:
        chosen = choose_greedy(logits)
        largest = logits.gather(-1, chosen[:, None])[:, 0]
        fit = largest.isfinite().tolist()
        random = [i for i, row in enumerate(batch) if fit[i] and not is_greedy(row.sampling)]
        if random:
            chosen[random] = choose_random(
                logits if len(random) == len(batch) else logits[random],
                [batch[i].sampling for i in random],
                [len(batch[i].tokens) for i in random],
            )
        faults = [i for i, sound in enumerate(fit) if not sound]
        if faults:
            chosen[faults] = choose_despite_faults(logits[faults])
        return chosen.tolist(), faults


def describe_prompt(logits: Tensor, row: Row, start: int) -> list[Logprob]:
    """Entries of the prompt tokens that follow those at `start`, `start + 1`, …, one for each row
    of raw float32 `[rows, vocabulary]` logits."""
    following = row.tokens[start + 1 : start + 1 + len(logits)]
    return describe(logits, following, [row.sampling.prompt_logprobs or 0] * len(logits))
