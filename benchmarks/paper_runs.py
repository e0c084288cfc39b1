"""What benchmarks/paper.py runs: the paper's servers and loads, and the search for a highest rate.

A rate is sustained where the mean normalized latency of half an hour's requests (a quarter of one
for OPT-175B, as in the paper, ten minutes for Alpaca's lengths) is at most half a second a token,
the middle of the paper's axes. It is sought among short runs first, an eighth as long, to a fifth;
what a short run cannot sustain, no long one is tried with. From there on only whole runs count, and
the answer is good to 5 %. The same requests for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import msgspec

from octavo.cluster.simulation.cost import Cost, load_of
from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED
from octavo.cluster.simulation.record import Record, Summary
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.workload import (
    Job,
    Length,
    draw_arrivals,
    draw_lengths,
    make_jobs,
)
from octavo.cluster.traces.lengths import PAPER_MEANS
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.plan import Work

SPREAD = 1.45
LONGEST = 2048
LIMIT = 0.5  # seconds a token
CELL_BYTES = 942  # at blocks of 16 and heads of 128, 23 % of what is read
SHORT, ROUGH, FINE, STEP = 0.125, 1.2, 1.05, 1.1
SECONDS = {"sharegpt": 1800.0, "alpaca": 600.0}
GRAIN = {"sharegpt": 8, "alpaca": 4}
LEAST = 100
FRAGMENTS = {"max": 0.089, "pow2": 0.416, "oracle": 0.366}  # of the pool: the paper's figure 2

ROW_MS = 0.33
engine = {"row_seconds": ROW_MS / 1e3}
length = {"factor": 1.0}


class Jobs(Protocol):
    def __call__(self, rate: float, share: float = 1.0) -> Sequence[Job]:
        """So many requests a second, for that share of a run."""


@dataclass(frozen=True, slots=True)
class Served:
    """A row of the paper's table 1. `tokens` are its slots for keys and values, `seconds` the
    longest of its runs."""

    model: str
    device: str
    ranks: int
    tokens: int
    seconds: float = 1800.0

    def setup(self, allocation: str = "paged", size: int = 16, **changes: object) -> Setup:
        device = msgspec.structs.replace(PRESETS[self.device], cell_bytes=CELL_BYTES, **engine)
        paged = allocation == "paged"
        marks = {} if paged else {"watermark_low": 0.0, "watermark_high": 0.0}
        settings = SchedulerConfig(
            max_model_len=LONGEST,
            block_size=size,
            max_num_queued_reqs=2**31,
            allocation=allocation,
            enable_prefix_caching=paged,
            **marks,
        )
        given = {"blocks": self.tokens // size, "paged": paged} | changes
        return Setup(device, NAMED[self.model], settings, ranks=self.ranks, **given)


OPT_13B = Served("opt-13b", "a100-40", 1, 15_728)
OPT_66B = Served("opt-66b", "a100-40", 4, 9_700)
OPT_175B = Served("opt-175b", "a100-80", 8, 60_100, 900.0)
LLAMA_13B = Served("llama-13b", "a100-40", 1, 15_728)
BOUNDS = {  # of the search, requests a second
    ("opt-13b", "sharegpt"): (0.2, 4.0),
    ("opt-13b", "alpaca"): (2.0, 60.0),
    ("opt-66b", "sharegpt"): (0.1, 4.0),
    ("opt-66b", "alpaca"): (1.0, 40.0),
    ("opt-175b", "sharegpt"): (0.2, 8.0),
    ("opt-175b", "alpaca"): (2.0, 60.0),
}


def drawn_lengths(means: tuple[float, float]) -> list[Length]:
    return draw_lengths(means, 4000, 0, LONGEST, SPREAD)


def repeated(drawn: Sequence[Length], seconds: float, prefix: int = 0, copies: int = 1) -> Jobs:
    """Requests of those lengths over and over, for so many seconds; each `copies` times at once."""

    def jobs(rate: float, share: float = 1.0) -> list[Job]:
        count = max(LEAST, int(rate * seconds * length["factor"] * share))
        lengths = [drawn[i % len(drawn)] for i in range(count) for _ in range(copies)]
        at = [each for each in draw_arrivals(rate, count, 0) for _ in range(copies)]
        return list(make_jobs(lengths, at, prefix))

    return jobs


def workload(name: str, longest: float = 1800.0, copies: int = 1) -> Jobs:
    """A data set's lengths, for as long as its runs are, but not longer than that."""
    return repeated(drawn_lengths(PAPER_MEANS[name]), min(longest, SECONDS[name]), copies=copies)


def without_fragments(setup: Setup) -> Setup:
    lost = FRAGMENTS[setup.scheduler.allocation]
    assert setup.blocks is not None
    return setup.changed(blocks=int(setup.blocks * (1 - lost)))


class InTurn(Cost):
    """Prompts are computed in a step before the one that decodes, which waits for it."""

    def __init__(self, setup: Setup) -> None:
        given = setup.hardware, setup.model, setup.ranks, setup.scheduler.block_size
        super().__init__(*given, paged=setup.paged, copies=setup.copies, grain=setup.grain)
        self._whole = Cost(*given, paged=setup.paged)
        self._each = setup.grain

    def compute(self, work: list[Work], repeated: int = 0) -> float:
        grain = self._each
        chunks = [
            Work(each.row, each.start * grain, each.count * grain, each.sample)
            for each in work
            if each.count > 1
        ]
        rest = [each for each in work if each.count <= 1]
        prompts = self._whole.seconds(load_of(chunks)) if chunks else 0.0
        return prompts + (self.seconds(load_of(rest, repeated)) if rest else 0.0)


@dataclass(frozen=True)
class Unmixed(Setup):
    def cost(self) -> Cost:
        return InTurn(self)


def unmixed(setup: Setup) -> Setup:
    return Unmixed(**{each.name: getattr(setup, each.name) for each in fields(setup)})


def is_sustained(setup: Setup, requests: Sequence[Job], limit: float = LIMIT) -> bool:
    """Whether their mean normalized latency is small enough. Given up as soon as it cannot be, or
    a quarter of them waits."""
    count = len(requests)

    def hopeless(record: Record) -> bool:
        return record.normalized > limit * count or record.queued > max(LEAST, count / 4)

    found = simulate(setup, requests, enough=hopeless)
    return found.requests == count and found.normalized_latency.mean <= limit


def sustained(setup: Setup, jobs: Jobs, low: float, high: float, limit: float = LIMIT) -> float:
    """The highest rate between two, or 0 where it is not even the lower one."""

    def narrowed(low: float, high: float, share: float, enough: float) -> tuple[float, float]:
        while high / low > enough:
            rate = math.sqrt(low * high)
            kept = is_sustained(setup, jobs(rate, share), limit)
            low, high = (rate, high) if kept else (low, rate)
        return low, high

    bottom = low
    low, high = narrowed(low, high, SHORT, ROUGH)
    while not is_sustained(setup, jobs(low), limit):
        low, high = low / STEP, low
        if low < bottom:
            return 0.0
    return narrowed(low, high, 1.0, FINE)[0]


def until_last_arrival(setup: Setup, jobs: Sequence[Job], look: int = 20) -> Summary:
    """While requests come: what follows is another load."""
    last = jobs[-1].at

    def enough(record: Record) -> bool:
        return record.last >= last

    return simulate(setup, jobs, look=look, enough=enough)


def off(ours: float, paper: float) -> str:
    return f"{100 * (ours / paper - 1):+.0f} %"
