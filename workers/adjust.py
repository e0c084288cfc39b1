"""What is done to a row's logits before a token is chosen: bias, forbidden tokens, penalties.

Most of it touches few tokens, so a step's changes are gathered into index arrays and applied at
once. Order: all but the allowed tokens, logit bias, the ends of bad words and end tokens while
below `min_tokens`, repetition penalty (prompt and output), then frequency and presence penalties
(output alone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.scheduler.mirror import Row
from octavo.scheduler.sampling import SamplingParams


def is_adjusted(row: Row) -> bool:
    """Whether `Adjuster.apply` would change anything of this row now."""
    sampling = row.sampling
    return (
        bool(sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_token_ids)
        or _ends_forbidden(row)
        or _has_penalty(sampling)
    )


class Adjuster:
    """Remembers which tokens each live row has seen, adding only new ones each step."""

    def __init__(self) -> None:
        self._histories: dict[int, _History] = {}

    @property
    def live_rows(self) -> int:
        """How many rows' histories are held."""
        return len(self._histories)

    def forget_all_but(self, rows: Mapping[int, Row]) -> None:
        """Lets go of rows that have ended or whose number has been born again."""
        for number in [n for n, h in self._histories.items() if rows.get(n) is not h.row]:
            del self._histories[number]

    def apply(self, logits: Tensor, numbers: Sequence[int], rows: Sequence[Row]) -> None:
        """Changes float32 `[rows, vocabulary]` logits in place. `numbers[i]` is the row number
        that `rows[i]` has in the plan. Token ids outside the vocabulary are passed over: the front
        refuses them, and one that slipped through must not take the batch down."""
        vocabulary = logits.shape[1]
        bias = _Entries(vocabulary)
        forbidden = _Entries(vocabulary)
        seen = _Entries(vocabulary)
        for at, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            sampling = row.sampling
            if sampling.allowed_token_ids:
                _leave_only(logits[at], sampling.allowed_token_ids)
            if sampling.bad_token_ids:
                ids = np.array(_bad_next(row), np.int64)
                forbidden.add(at, ids, np.full(len(ids), -np.inf, np.float32))
            if sampling.logit_bias:
                ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
                bias.add(at, ids, np.fromiter(sampling.logit_bias.values(), np.float32))
            if _ends_forbidden(row):
                ids = np.array(sampling.stop_token_ids, np.int64)
                forbidden.add(at, ids, np.full(len(ids), -np.inf, np.float32))
            if _has_penalty(sampling):
                history = self._histories.get(number)
                if history is None or history.row is not row:
                    history = self._histories[number] = _History(row)
                ids, counts = history.update()
                subtracted = sampling.frequency_penalty * counts
                subtracted += sampling.presence_penalty * (counts > 0)
                seen.add(at, ids, subtracted, sampling.repetition_penalty)
        if bias:
            index, values, _ = bias.tensors(logits.device)
            logits[index] += values
        if forbidden:
            index, values, _ = forbidden.tensors(logits.device)
            logits[index] = values
        if seen:
            index, values, factor = seen.tensors(logits.device)
            found = logits[index]
            logits[index] = torch.where(found > 0, found / factor, found * factor) - values


def _leave_only(logits: Tensor, allowed: Sequence[int]) -> None:
    """All other `[vocabulary]` logits of one row are out of the question."""
    ids = torch.tensor([id_ for id_ in allowed if id_ < len(logits)], device=logits.device)
    kept = logits[ids]
    logits.fill_(-torch.inf)
    logits[ids] = kept


def _bad_next(row: Row) -> list[int]:
    """Tokens that would complete a bad word in what the row has generated."""
    generated = len(row.tokens) - row.prompt_len
    return [
        tokens[-1]
        for tokens in row.sampling.bad_token_ids
        if len(tokens) - 1 <= generated
        and tuple(row.tokens[len(row.tokens) - len(tokens) + 1 :]) == tokens[:-1]
    ]


def _ends_forbidden(row: Row) -> bool:
    """With a grammar, its masks see to it: there may be nothing left but an end."""
    sampling, generated = row.sampling, len(row.tokens) - row.prompt_len
    early = generated < sampling.min_tokens and bool(sampling.stop_token_ids)
    return early and sampling.grammar is None


def _has_penalty(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
    )


class _History:
    """Distinct tokens of one row, and how often each was generated (0 for the prompt's own)."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self._upto = 0
        self._where: dict[int, int] = {}
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.float32)

    def update(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        tokens, prompt_len = self.row.tokens, self.row.prompt_len
        self._reserve(len(self._where) + len(tokens) - self._upto)
        for position in range(self._upto, len(tokens)):
            token = tokens[position]
            at = self._where.setdefault(token, len(self._where))
            self._ids[at] = token
            self._counts[at] += position >= prompt_len
        self._upto = len(tokens)
        return self._ids[: len(self._where)], self._counts[: len(self._where)]

    def _reserve(self, need: int) -> None:
        missing = need - len(self._ids)
        if missing > 0:
            missing += need  # double, so that growth is rare
            self._ids = np.pad(self._ids, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))


class _Entries:
    """Scattered cells of the logits with a value, and a factor, for each."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._rows: list[npt.NDArray[np.int64]] = []
        self._ids: list[npt.NDArray[np.int64]] = []
        self._values: list[npt.NDArray[np.float32]] = []
        self._factors: list[npt.NDArray[np.float32]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(
        self,
        row: int,
        ids: npt.NDArray[np.int64],
        values: npt.NDArray[np.float32],
        factor: float = 1.0,
    ) -> None:
        valid = (ids >= 0) & (ids < self._vocabulary)
        ids = ids[valid]
        self._rows.append(np.full(len(ids), row, np.int64))
        self._ids.append(ids)
        self._values.append(values[valid])
        self._factors.append(np.full(len(ids), factor, np.float32))

    def tensors(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """The (row, token) index, the values and the factors, on `device`."""
        rows, ids, values, factors = (
            torch.from_numpy(np.concatenate(parts)).to(device)
            for parts in (self._rows, self._ids, self._values, self._factors)
        )
        return (rows, ids), values, factors
