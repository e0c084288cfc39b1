"""Chooses one token a row from adjusted logits: greedily, or by inverting the distribution.

A filtered row's tokens are put in order, likeliest first and lower ids first among equals; top-k,
top-p and min-p each keep a prefix of that order. The 128 likeliest mostly decide; rows that they do
not decide are looked at again with more, in the end with all. Every attempt goes through
`_pick_ordered`, over the same numbers, so how many were looked at never changes the answer. An
unfiltered row needs no order at all.

Sums run over short pieces of a row first: torch divides a long sum of a lone row among threads, and
a row's choice must not depend on which other rows are in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.scheduler.sampling import SamplingParams
from octavo.workers.draws import uniforms

CANDIDATES = (128, 2048)  # then the whole vocabulary
PIECE = 128  # divides most vocabularies
COLDEST = 1e-5  # lower temperatures are greedy, as dividing by them would overflow


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether the likeliest token is taken, whatever the random number."""
    return sampling.greedy or sampling.temperature < COLDEST


def choose_despite_faults(logits: Tensor) -> Tensor:
    """int64 `[rows]`: the likeliest token whose logit is a number; 0 where there is none."""
    lowest = float("-inf")
    return logits.nan_to_num(nan=lowest, posinf=lowest, neginf=lowest).argmax(-1)


def likeliest(logits: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Values and int64 ids `[rows, number]` of the likeliest tokens, lower ids first among equals.
    Which of several equals comes last is not sure where not all of them are among the `number`."""
    values, ids = logits.topk(number, dim=-1)
    ids, order = ids.sort(-1)  # equals come in any order from topk
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def choose_random(
    logits: Tensor,
    sampling: Sequence[SamplingParams],
    positions: Sequence[int],
    candidates: Sequence[int] = CANDIDATES,
) -> Tensor:
    """int64 `[rows]`, drawn from float32 `[rows, vocabulary]` logits after temperature, top-k,
    top-p and min-p. `positions` are the indices of the chosen tokens in their streams; every
    `sampling` has a seed. Each row's largest logit must be finite. `candidates` changes speed, not
    the answer."""
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    draws = uniforms([params.seed or 0 for params in sampling], positions)
    u = torch.from_numpy(draws).to(logits.device)
    plain = [i for i, params in enumerate(sampling) if not _is_filtered(params)]
    if plain:
        temperature = _column([sampling[i].temperature for i in plain], logits)
        chosen[plain] = _choose_plain(_weights(logits[plain], temperature), u[plain, None])
    filtered = [i for i, params in enumerate(sampling) if _is_filtered(params)]
    if filtered:
        subset = logits if len(filtered) == len(logits) else logits[filtered]
        filters = _Filters.of([sampling[i] for i in filtered], u[filtered, None], subset)
        chosen[filtered] = _choose_filtered(subset, filters, candidates)
    return chosen


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


@dataclass(frozen=True, slots=True)
class _Filters:
    """Columns `[rows, 1]`: one row's parameters beside its logits. `mass` is the sum of all
    weights where top-p needs it: then it must be the same bits on both paths."""

    temperature: Tensor
    top_k: Tensor  # int64, the vocabulary's size where it is off
    top_p: Tensor
    min_p: Tensor
    draw: Tensor
    mass: Tensor

    @classmethod
    def of(cls, sampling: Sequence[SamplingParams], draw: Tensor, logits: Tensor) -> _Filters:
        vocabulary = logits.shape[1]
        temperature = _column([params.temperature for params in sampling], logits)
        top_k = [min(params.top_k, vocabulary) if params.top_k > 0 else vocabulary
                 for params in sampling]  # fmt: skip
        mass = torch.full_like(draw, torch.nan)
        wanted = [i for i, params in enumerate(sampling)
                  if params.top_p < 1 and top_k[i] == vocabulary]  # fmt: skip
        if wanted:
            weights = _weights(logits[wanted], temperature[wanted])
            mass[wanted] = _running_sums(_pieces(weights))[:, -1:]
        return cls(
            temperature=temperature,
            top_k=torch.tensor(top_k, device=logits.device)[:, None],
            top_p=_column([params.top_p for params in sampling], draw),
            min_p=_column([params.min_p for params in sampling], draw),
            draw=draw,
            mass=mass,
        )

    def rows(self, which: Tensor) -> _Filters:
        return _Filters(
            *(getattr(self, name)[which] for name in self.__dataclass_fields__),
        )


def _choose_plain(weights: Tensor, draw: Tensor) -> Tensor:
    """Finds the piece of the row in which the draw falls, then the token in it."""
    pieces = _pieces(weights)
    sums = _running_sums(pieces)
    mass = sums[:, -1:]
    piece = _invert(sums, mass, draw)[:, None]
    starts = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    start, end = starts.gather(-1, piece), sums.gather(-1, piece)
    rest = (draw * mass - start) / (end - start)
    inner = pieces.gather(1, piece[:, :, None].expand(-1, -1, PIECE))[:, 0]
    inner_sums = inner.cumsum(-1, dtype=torch.float64)
    return piece[:, 0] * PIECE + _invert(inner_sums, inner_sums[:, -1:], rest)


def _choose_filtered(logits: Tensor, filters: _Filters, candidates: Sequence[int]) -> Tensor:
    vocabulary = logits.shape[1]
    number = candidates[0] if candidates else vocabulary
    if number >= vocabulary:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        sure = torch.full((len(logits), 1), vocabulary, device=logits.device)
        return _pick_ordered(values, ids, sure, vocabulary, filters)[0]
    values, ids = likeliest(logits, number)
    # Among equals of the last candidate, others may be missing: only what is above it is sure.
    # Where the last is forbidden, so is all that is missing.
    sure = (values > values[:, -1:]).sum(-1, keepdim=True)
    sure = torch.where(values[:, -1:] == float("-inf"), vocabulary, sure)
    chosen, exact = _pick_ordered(values, ids, sure, vocabulary, filters)
    unsure = (~exact).nonzero()[:, 0]
    if len(unsure):
        chosen[unsure] = _choose_filtered(logits[unsure], filters.rows(unsure), candidates[1:])
    return chosen


def _pick_ordered(
    values: Tensor, ids: Tensor, sure: Tensor, vocabulary: int, filters: _Filters
) -> tuple[Tensor, Tensor]:
    """Tokens `[rows]` and whether they are final `[rows]`, from the first `[rows, columns]` logits
    in order, of which `sure` `[rows, 1]` are beyond doubt. The kept prefix is final where its
    length is at most `sure`: a longer one may be wrong, or cut short by the columns given."""
    weights = _weights(values, filters.temperature)
    sums = weights.cumsum(-1, dtype=torch.float64)
    before = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    top_k = filters.top_k
    last = values.shape[1] - 1
    mass_of_k = sums.gather(-1, (top_k - 1).clamp(max=last))
    mass = torch.where(top_k == vocabulary, filters.mass, mass_of_k)
    nucleus = filters.top_p < 1
    by_p = torch.where(nucleus, before < filters.top_p * mass, True).sum(-1, keepdim=True)
    by_p = torch.where(nucleus, by_p, vocabulary)
    by_min_p = (weights >= filters.min_p).sum(-1, keepdim=True)
    by_min_p = torch.where(filters.min_p > 0, by_min_p, vocabulary)
    kept = torch.minimum(torch.minimum(by_p, by_min_p), top_k)
    mass_known = ~nucleus | (top_k <= sure) | (top_k == vocabulary)
    exact = (kept <= sure) & mass_known
    kept_mass = sums.gather(-1, (kept - 1).clamp(max=last))
    place = _invert(sums, kept_mass, filters.draw).clamp(max=last)
    return ids.gather(-1, place[:, None])[:, 0], exact[:, 0]


def _invert(sums: Tensor, mass: Tensor, draw: Tensor) -> Tensor:
    """int64 `[rows]`: the first column whose running sum exceeds `draw * mass`. The target is kept
    below `mass`, so that rounding never lands on a token of weight zero."""
    below = torch.nextafter(mass, torch.zeros_like(mass))
    target = torch.minimum(draw * mass, below)
    return torch.searchsorted(sums, target, right=True)[:, 0]


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities up to a factor: the likeliest token of each row has the weight 1."""
    largest = logits.max(-1, keepdim=True).values
    return logits.sub(largest).div_(temperature).exp_()


def _pieces(weights: Tensor) -> Tensor:
    """`[rows, pieces, PIECE]`, filled up with zeros."""
    short = -weights.shape[1] % PIECE
    if short:
        weights = torch.nn.functional.pad(weights, (0, short))
    return weights.view(len(weights), -1, PIECE)


def _running_sums(pieces: Tensor) -> Tensor:
    """float64 `[rows, pieces]`: sums of each row's pieces up to and with each."""
    return pieces.sum(-1).cumsum(-1, dtype=torch.float64)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]
