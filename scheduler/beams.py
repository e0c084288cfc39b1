"""Beam search with transformers' outcome (`generate(num_beams=...)`, 5.x), as a state machine.

Knows nothing of rows, blocks or models: candidates come in, survivors go out. The rules of a step,
for `width` beams and max(2, 1 + stop tokens) * `width` continuations kept of all that are there:

- A continuation ends with a stop token or by length. It is finished if it ends and is among the
  first `width`; the others are kept only so that `width` beams are left that go on.
- Finished ones are ranked by score = total logprob / generated length ** length_penalty, the stop
  token counted, the prompt not. The best `width` stay.
- The search is over when all continuations ended; or when `width` are finished and either
  early_stopping is True or the likeliest survivor could not get into them. What it could get is its
  total at its present length, or at `max_tokens` where early_stopping is "never" and
  length_penalty > 0.

All arithmetic is rounded to float32 as transformers' tensors are: totals that differ in double
precision may tie in float32, or the other way round, and then other beams survive. Of equal ones
the first wins: the lower beam, then the likelier token, and the one finished earlier. (torch's topk
leaves open which.)
"""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Literal

# The handicap, in nats, of what must not be taken while anything else is left: ended continuations
# as survivors, and the copies of the prompt that fill up the first step. Such a beam is seen only
# where -inf leaves fewer than `width` real ones. Also the score to beat in order to finish at all.
_HANDICAP = -1e9


@dataclass(frozen=True, slots=True)
class Survivor:
    """A live beam of the next step: `token` appended to live beam `parent` of this one."""

    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam. `ranks` are 1-based places among the candidates of the beam at that step."""

    tokens: list[int]  # generated only, with the stop token it ended with
    logprobs: list[float]  # of each token, as they came in
    ranks: list[int]
    score: float
    stop_token: int | None  # None: ended by length


@dataclass(frozen=True, slots=True)
class _Path:
    """A sequence by its last token; beams share their pasts, so a step costs no copies."""

    past: _Path | None
    parent: int  # the place of `past` among the live beams
    token: int
    logprob: float
    rank: int
    total: float


class BeamSearch:
    """`stop` and `max_tokens` (at least 1) end a beam. `width` 1 is greedy decoding."""

    def __init__(
        self,
        width: int,
        max_tokens: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        stop: frozenset[int],
    ) -> None:
        assert width > 0 and max_tokens > 0, (width, max_tokens)
        self._width = width
        self._max_tokens = max_tokens
        self._length_penalty = length_penalty
        # transformers decodes greedily at width 1, where the first end is the only one
        self._early_stopping = early_stopping if width > 1 else True
        self._stop = stop
        self._keep = max(2, 1 + len(stop)) * width
        self._length = 0
        # (total, path): all beams begin as the prompt, but only the first one counts
        self._live: Sequence[tuple[float, _Path | None]] = [
            (_HANDICAP if copy else 0.0, None) for copy in range(width)
        ]
        self._finished: list[tuple[float, _Path]] = []  # (score, path), best first
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the search is over."""
        return self._done

    def step(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> list[Survivor]:
        """Takes (token, logprob) of each live beam, likeliest first: one row for the prompt, later
        one for each survivor of the last step, in that order. A row has as many entries as
        continuations are kept, or the whole vocabulary. Returns `width` survivors, likeliest first,
        or none when the search is over.
        """
        first = self._length == 0
        assert not self._done and len(candidates) == (1 if first else self._width)
        self._length += 1
        paths = self._likeliest(list(candidates) * self._width if first else candidates)
        ended = [path.token in self._stop or self._length == self._max_tokens for path in paths]
        self._finish([path for path, end in zip(paths[: self._width], ended, strict=False) if end])
        survivors = sorted(
            (
                (_float32(path.total + _HANDICAP) if end else path.total, path)
                for path, end in zip(paths, ended, strict=True)
            ),
            key=itemgetter(0),
            reverse=True,
        )[: self._width]
        self._live = survivors
        self._done = all(ended) or not self._worthwhile()
        if self._done:
            return []
        return [Survivor(0 if first else path.parent, path.token) for _, path in survivors]

    def best(self, n: int) -> list[Hypothesis]:
        """The `n` <= `width` best finished beams, best first. Where fewer came to an end, which
        takes logprobs of -inf or scores below -1e9, the rest are empty, as in transformers."""
        assert self._done and n <= self._width
        found = [self._hypothesis(score, path) for score, path in self._finished[:n]]
        return found + [Hypothesis([], [], [], _HANDICAP, None) for _ in range(n - len(found))]

    def _likeliest(self, rows: Sequence[Sequence[tuple[int, float]]]) -> list[_Path]:
        """The first `_keep` continuations by total. Rows are in order, so that merging them looks
        at few more than are taken."""
        continued = (self._continue(beam, row) for beam, row in enumerate(rows))
        return list(
            islice(heapq.merge(*continued, key=attrgetter("total"), reverse=True), self._keep)
        )

    def _continue(self, beam: int, row: Sequence[tuple[int, float]]) -> Iterator[_Path]:
        total, past = self._live[beam]
        for rank, (token, logprob) in enumerate(row, 1):
            yield _Path(past, beam, token, logprob, rank, _float32(total + logprob))

    def _finish(self, paths: list[_Path]) -> None:
        scored = [(self._score(path.total, self._length), path) for path in paths]
        self._finished += [(score, path) for score, path in scored if score > _HANDICAP]
        self._finished.sort(key=itemgetter(0), reverse=True)
        del self._finished[self._width :]

    def _worthwhile(self) -> bool:
        """Whether going on could change the finished beams, by transformers' estimate."""
        full = len(self._finished) == self._width
        if full and self._early_stopping is True:
            return False
        hopeful = self._early_stopping == "never" and self._length_penalty > 0
        reach = self._score(self._live[0][0], self._max_tokens if hopeful else self._length)
        return reach > (self._finished[-1][0] if full else _HANDICAP)

    def _score(self, total: float, length: int) -> float:
        """An extreme penalty overflows here as it does in a tensor, instead of raising."""
        try:
            divisor = _float32(float(length) ** self._length_penalty)
        except OverflowError:
            divisor = float("inf")
        return _float32(total / divisor) if divisor else float("-inf")

    def _hypothesis(self, score: float, last: _Path) -> Hypothesis:
        paths = []
        path: _Path | None = last
        while path:
            paths.append(path)
            path = path.past
        paths.reverse()
        return Hypothesis(
            tokens=[path.token for path in paths],
            logprobs=[path.logprob for path in paths],
            ranks=[path.rank for path in paths],
            score=score,
            stop_token=last.token if last.token in self._stop else None,
        )


def _float32(value: float) -> float:
    """Rounded to the nearest float32, to infinity if beyond."""
    return ctypes.c_float(value).value
