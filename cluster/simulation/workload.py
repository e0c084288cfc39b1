"""What is asked of the engine: when requests come, how long they are, what their prompts share.

A prompt is described by pieces, (content, tokens) each: pieces with the same content have the same
tokens. Its tokens are made when it arrives, so that millions of requests can be looked forward to.
Everything is drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, repeat
from typing import Any, Protocol, TypeVar

from octavo.cluster.traces.lengths import Length, log_normal
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams

Piece = tuple[int, int]
T_co = TypeVar("T_co", covariant=True)
OWN = 2**31  # contents from here on are one request's own
SHARED = 2**30  # contents of prefixes that were asked for, not found in a trace

STRETCHES, MOST_DRAWS = 12, 20
SAMPLE = 100_000  # lengths whose means are looked at


@dataclass(frozen=True, slots=True)
class Job:
    """A request to come, `at` seconds after the start. `own` is the content of those tokens of its
    prompt that are in no piece."""

    number: int
    at: float
    prompt: int
    answer: int
    pieces: tuple[Piece, ...] = ()

    def runs(self, grain: int = 1) -> list[Piece]:
        """Its prompt's tokens, each of which may stand for `grain` of them, equal neighbours
        together; at least one."""
        made: list[Piece] = []
        before, left = 0, max(1, round(self.prompt / grain))
        for content, count in self.pieces:
            end = min(before + count, self.prompt)
            some = min(left, end // grain - before // grain)
            before = end
            if some:
                left -= some
                if made and made[-1][0] == content:
                    some += made.pop()[1]
                made.append((content, some))
        if left:
            made.append((OWN + self.number, left))
        return made

    def tokens(self, grain: int = 1) -> list[int]:
        """Of the prompt, as `runs` has them."""
        return _spell(self.runs(grain))

    def request(
        self, grain: int, sampling: dict[str, Any], runs: Sequence[Piece] | None = None
    ) -> Request:
        """An answer of exactly so many tokens: what a model says, and where it ends, is not
        simulated. `sampling` has what is asked for besides: `n`, `beam_width`; `runs` are its own,
        where they are at hand."""
        answer = self.answer
        if grain > 1:  # rounded at random, so that all answers together are as long as they were
            whole, rest = divmod(answer, grain)
            dither = (self.number * 0x9E3779B1 & 0xFFFFFFFF) / 2**32
            answer = max(1, whole + (rest / grain > dither))
        parameters = _parameters(answer, tuple(sampling.items()))
        prompt = _spell(self.runs(grain) if runs is None else runs)
        return Request(str(self.number), prompt, parameters, arrived=self.at)


def _spell(runs: Sequence[Piece]) -> list[int]:
    made: list[int] = []
    for content, count in runs:
        made += [content] * count
    return made


@lru_cache(maxsize=4096)
def _parameters(answer: int, others: tuple[tuple[str, Any], ...]) -> SamplingParams:
    return SamplingParams(max_tokens=answer, seed=0, ignore_eos=True, **dict(others))


class Series(Protocol[T_co]):
    """As many as it says, the same each time, though they may be drawn one by one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


class Lengths:
    """Log-normal ones, with means `spread` times their medians; 1 makes all alike. Sums of more
    than `most` tokens are drawn again, and the rest is stretched until the means are as asked for
    again, to a hundredth where there is room for that: those of the first `SAMPLE`."""

    def __init__(
        self, means: tuple[float, float], count: int, seed: int, most: int, spread: float = 2.0
    ) -> None:
        self._count = count
        self._seed = seed
        self._most = most
        self._spread = spread
        self._aims = list(means)
        for _ in range(STRETCHES):
            sample = list(islice(self._draw(count), SAMPLE))
            if len(sample) < min(count, SAMPLE):
                raise InvalidRequest(
                    "max_model_len",
                    f"--max-model-len {most} leaves out nearly all requests of {means[0]:g} and "
                    f"{means[1]:g} tokens: raise it, or ask for shorter ones",
                )
            got = [sum(each[side] for each in sample) / len(sample) for side in (0, 1)]
            if all(abs(one / mean - 1) < 0.01 for one, mean in zip(got, means, strict=True)):
                break
            stretched = zip(self._aims, means, got, strict=True)
            self._aims = [aim * mean / one for aim, mean, one in stretched]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Length]:
        return self._draw(self._count)

    def _draw(self, count: int) -> Iterator[Length]:
        """Fewer, where hardly any keeps the bound."""
        draws = log_normal(self._aims, random.Random(f"lengths {self._seed}"), self._spread)
        fitting = (drawn for drawn in islice(draws, count * MOST_DRAWS) if sum(drawn) <= self._most)
        return islice(fitting, count)


def draw_lengths(
    means: tuple[float, float], count: int, seed: int, most: int, spread: float = 2.0
) -> list[Length]:
    """All of those `Lengths`."""
    return list(Lengths(means, count, seed, most, spread))


class Arrivals:
    """Seconds from the start: gaps by a gamma distribution, Poisson arrivals at `burstiness` 1,
    more in bursts below and more evenly above it, as vLLM's benchmark has it. With an infinite
    rate, all at once."""

    def __init__(self, rate: float, count: int, seed: int, burstiness: float = 1.0) -> None:
        self._scale = 1 / (rate * burstiness)  # 0 at an infinite rate
        self._count = count
        self._seed = seed
        self._burstiness = burstiness

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[float]:
        if not self._scale:
            return repeat(0.0, self._count)
        draw = random.Random(f"arrivals {self._seed}").gammavariate
        return accumulate(draw(self._burstiness, self._scale) for _ in range(self._count))


def draw_arrivals(rate: float, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """All of those `Arrivals`."""
    return list(Arrivals(rate, count, seed, burstiness))


@dataclass(frozen=True, slots=True)
class Jobs:
    """Those of `make_jobs`, made while they are gone through: there may be ten million."""

    lengths: Series[Length]
    arrivals: Series[float]
    prefix: int = 0
    prefixes: int = 1
    seed: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Job]:
        return make_jobs(self.lengths, self.arrivals, self.prefix, self.prefixes, self.seed)


def make_jobs(
    lengths: Iterable[Length],
    arrivals: Iterable[float],
    prefix: int = 0,
    prefixes: int = 1,
    seed: int = 0,
) -> Iterator[Job]:
    """Jobs whose prompts are their own, but for `prefix` tokens before each that it shares with all
    those of its group: one of `prefixes`, drawn evenly."""
    source = random.Random(f"prefixes {seed}")
    for number, ((prompt, answer), at) in enumerate(zip(lengths, arrivals, strict=True)):
        shared = ((SHARED + source.randrange(prefixes), prefix),) if prefix else ()
        yield Job(number, at, prompt + prefix, answer, shared)


def scaled(jobs: Sequence[Job], factor: float) -> list[Job]:
    """The same requests, `factor` times as many of them a second."""
    return [Job(job.number, job.at / factor, job.prompt, job.answer, job.pieces) for job in jobs]
