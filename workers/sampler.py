"""From logits to tokens, for a whole step at once; the order of operations is vLLM's.

Log-probabilities are of the raw logits. Then bias, forbidden ends and penalties, and what a row's
grammar forbids; greedy rows take the likeliest token; the others go through temperature, top-k,
top-p and min-p to a draw that depends on seed and position alone.

Beams choose nothing: they name candidates, by their log-probabilities after the same changes, which
is what transformers does.

A row whose logits have no finite maximum (a NaN, or nothing left to choose) does not disturb the
others: it gets its likeliest proper number, and is named in `Sampled.faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.scheduler.mirror import Row
from octavo.scheduler.request import Logprob
from octavo.workers.adjust import Adjuster, is_adjusted
from octavo.workers.candidates import Candidates, name_candidates
from octavo.workers.choose import choose_despite_faults, choose_random, is_greedy
from octavo.workers.logprobs import describe
from octavo.workers.masks import Masks


@dataclass(frozen=True, slots=True)
class Sampled:
    """`logprobs` is empty where nobody asked, else parallel to `tokens`. `faults` are indices into
    `tokens` of rows whose logits were not fit to choose from, `strayed` those of rows whose grammar
    could not be followed, with the reason."""

    tokens: list[int]
    logprobs: list[Logprob | None]
    faults: list[int]
    strayed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """What beams may go on with. `faults` are indices into `candidates`, which are empty there."""

    candidates: list[Candidates]
    faults: list[int]


class Sampler:
    """Without `masks`, no row may have a grammar."""

    def __init__(self, kernels: Kernels, masks: Masks | None = None) -> None:
        self._kernels = kernels
        self._masks = masks
        self._adjuster = Adjuster()

    def begin(self, numbers: Sequence[int], rows: Mapping[int, Row]) -> None:
        """To be called ahead of `sample`, with the same arguments, before the model runs."""
        if self._masks is not None:
            self._masks.begin(numbers, rows)

    def sample(self, logits: Tensor, numbers: Sequence[int], rows: Mapping[int, Row]) -> Sampled:
        """Chooses the next token of row `numbers[i]` from `logits[i]`, `[n, vocabulary]`, which may
        be overwritten. The token will be appended at index `len(row.tokens)`."""
        batch = [rows[number] for number in numbers]
        self._adjuster.forget_all_but(rows)
        described = [i for i, row in enumerate(batch) if row.sampling.logprobs is not None]
        if not described and all(is_greedy(row.sampling) and not is_adjusted(row) for row in batch):
            strayed = self._forbid(logits)
            tokens, faults = self._take_largest(logits)
            return Sampled(tokens, [], faults, strayed)
        logits = logits.float()
        raw = logits[described] if described else None
        self._adjust(logits, numbers, batch)
        strayed = self._forbid(logits)
        tokens, faults = self._choose(logits, batch)
        logprobs: list[Logprob | None] = []
        if raw is not None:
            logprobs = [None] * len(batch)
            tops = [batch[i].sampling.logprobs or 0 for i in described]
            entries = describe(raw, [tokens[i] for i in described], tops)
            for i, entry in zip(described, entries, strict=True):
                logprobs[i] = entry
        return Sampled(tokens, logprobs, faults, strayed)

    def search(self, logits: Tensor, numbers: Sequence[int], rows: Mapping[int, Row]) -> Named:
        """The candidates of row `numbers[i]`, which has a beam width, from `logits[i]`, float32
        `[n, vocabulary]`."""
        batch = [rows[number] for number in numbers]
        self._adjuster.forget_all_but(rows)
        scores = logits.log_softmax(-1)
        self._adjust(scores, numbers, batch)
        found = name_candidates(scores, [row.sampling.beam_candidates for row in batch])
        faults = [i for i, named in enumerate(found) if not named]
        return Named(found, faults)

    def _forbid(self, logits: Tensor) -> dict[int, str]:
        return {} if self._masks is None else self._masks.forbid(logits)

    def _adjust(self, scores: Tensor, numbers: Sequence[int], batch: Sequence[Row]) -> None:
        adjusted = [i for i, row in enumerate(batch) if is_adjusted(row)]
        if adjusted:
            subset = scores[adjusted]
            self._adjuster.apply(
                subset, [numbers[i] for i in adjusted], [batch[i] for i in adjusted]
            )
            scores[adjusted] = subset

    def _choose(self, logits: Tensor, batch: Sequence[Row]) -> tuple[list[int], list[int]]:
        """The tokens of float32 logits, and which of them come from unfit ones."""
        tokens, faults = self._take_largest(logits)
        unfit = set(faults)
        drawn = [i for i, row in enumerate(batch) if i not in unfit and not is_greedy(row.sampling)]
        if drawn:
            chosen = choose_random(
                logits if len(drawn) == len(batch) else logits[drawn],
                [batch[i].sampling for i in drawn],
                [len(batch[i].tokens) for i in drawn],
            )
            for i, token in zip(drawn, chosen.tolist(), strict=True):
                tokens[i] = token
        return tokens, faults

    def _take_largest(self, logits: Tensor) -> tuple[list[int], list[int]]:
        """The likeliest tokens of logits of any dtype, and which of them come from unfit ones."""
        chosen, largest = self._kernels.argmax(logits)
        faults = (~largest.isfinite()).nonzero()[:, 0].tolist()
        if faults:
            chosen[faults] = choose_despite_faults(logits[faults].float())
        return chosen.tolist(), faults


def describe_prompt(logits: Tensor, row: Row, start: int) -> list[Logprob]:
    """Entries of the prompt tokens that follow those at `start`, `start + 1`, …, one for each row
    of raw float32 `[rows, vocabulary]` logits."""
    following = row.tokens[start + 1 : start + 1 + len(logits)]
    return describe(logits, following, [row.sampling.prompt_logprobs or 0] * len(logits))
