"""What is asked of the engine: when requests come, how long they are, what their prompts share.

A prompt is described by pieces, (content, tokens) each: pieces with the same content have the same
tokens. Its tokens are made when it arrives, so that millions of requests can be looked forward to.
Everything is drawn from a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams

Piece = tuple[int, int]
Length = tuple[int, int]  # tokens of the prompt, tokens of the answer
OWN = 2**31  # contents from here on are one request's own
SHARED = 2**30  # contents of prefixes that were asked for, not found in a trace

STRETCHES, MOST_DRAWS = 12, 20

# Means of the prompt and of the answer in the traces of the PagedAttention paper (Kwon et al. 2023)
MEANS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}


@dataclass(frozen=True, slots=True)
class Job:
    """A request to come, `at` seconds after the start. `own` is the content of those tokens of its
    prompt that are in no piece."""

    number: int
    at: float
    prompt: int
    answer: int
    pieces: tuple[Piece, ...] = ()

    def tokens(self, grain: int = 1) -> list[int]:
        """Of the prompt, each of which may stand for `grain` of them; at least one."""
        made: list[int] = []
        before = 0
        for content, count in self.pieces:
            count = min(count, self.prompt - before)
            made += [content] * ((before + count) // grain - before // grain)
            before += count
        total = max(1, round(self.prompt / grain))
        del made[total:]
        return made + [OWN + self.number] * (total - len(made))

    def request(self, grain: int, sampling: dict[str, Any]) -> Request:
        """An answer of exactly so many tokens: what a model says, and where it ends, is not
        simulated. `sampling` has what is asked for besides: `n`, `beam_width`."""
        answer = self.answer
        if grain > 1:  # rounded at random, so that all answers together are as long as they were
            whole, rest = divmod(answer, grain)
            dither = (self.number * 0x9E3779B1 & 0xFFFFFFFF) / 2**32
            answer = max(1, whole + (rest / grain > dither))
        parameters = SamplingParams(max_tokens=answer, seed=0, ignore_eos=True, **sampling)
        return Request(str(self.number), self.tokens(grain), parameters, arrived=self.at)


def draw_lengths(
    means: tuple[float, float], count: int, seed: int, most: int, spread: float = 2.0
) -> list[Length]:
    """Log-normal ones, with means `spread` times their medians; 1 makes all alike. Sums of more
    than `most` tokens are drawn again, and the rest is stretched until the means are as asked for
    again, to a hundredth where there is room for that."""
    sigma = math.sqrt(2 * math.log(spread))
    medians = [mean / spread for mean in means]
    found: list[Length] = []
    for _ in range(STRETCHES):
        source = random.Random(f"lengths {seed}")
        found = []
        for _ in range(count * MOST_DRAWS):
            drawn = [max(1, round(each * source.lognormvariate(0, sigma))) for each in medians]
            if sum(drawn) <= most:
                found.append((drawn[0], drawn[1]))
            if len(found) == count:
                break
        else:
            raise InvalidRequest(
                "max_model_len",
                f"--max-model-len {most} leaves out nearly all requests of {means[0]:g} and "
                f"{means[1]:g} tokens: raise it, or ask for shorter ones",
            )
        got = [sum(each[side] for each in found) / count for side in (0, 1)]
        if all(abs(one / mean - 1) < 0.01 for one, mean in zip(got, means, strict=True)):
            break
        medians = [m * mean / one for m, mean, one in zip(medians, means, got, strict=True)]
    return found


def draw_arrivals(rate: float, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """Seconds from the start: gaps by a gamma distribution, Poisson arrivals at `burstiness` 1,
    more in bursts below and more evenly above it, as vLLM's benchmark has it. With an infinite
    rate, all at once."""
    if math.isinf(rate):
        return [0.0] * count
    source = random.Random(f"arrivals {seed}")
    scale = 1 / (rate * burstiness)
    return list(accumulate(source.gammavariate(burstiness, scale) for _ in range(count)))


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
