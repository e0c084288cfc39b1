"""Figures that people read, out of totals of two moments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.cluster.top.readings import Reading, Totals

Quantiles = tuple[float, float]
"""Median and 95th percentile, in seconds."""
DEVICE = ("private", "shared", "cached", "free")
HOST = ("held", "cached", "free")


class RankFigures(NamedTuple):
    """Mean seconds of a rank's steps, and the share of them in which it exchanged values with the
    other ranks, or waited for them."""

    rank: int
    step: float
    exchanging: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The state of one replica, or of several together, and what went on since an earlier moment.
    Rates are per second; None is what nothing can be said of yet."""

    running: int
    waiting: int
    swapped: int
    queue_age: float
    step_age: float
    device: Mapping[str, int]
    host: Mapping[str, int]
    generated: float | None
    computed: float | None
    found: float | None
    finished: float | None
    steps: float | None
    step_tokens: float | None
    first_token: Quantiles | None
    between_tokens: Quantiles | None
    preemptions: float | None  # for each request that ended
    hit_rate: float | None
    ranks: tuple[RankFigures, ...] = ()  # that computed meanwhile; of several replicas, their means

    @property
    def usage(self) -> float:
        """Share of the device's blocks that requests hold."""
        held = self.device["private"] + self.device["shared"]
        return held / max(1, sum(self.device.values()))


def figures(now: Reading, before: Reading | None, replicas: Iterable[tuple[str, str]]) -> Figures:
    """Of these replicas together. One that was not there before counts from now on."""
    chosen = list(replicas)
    totals = _together(now.replicas[each] for each in chosen)
    gained: Totals = {}
    seconds = 0.0
    if before is not None:
        known = [each for each in chosen if each in before.replicas]
        ends = _together(now.replicas[each] for each in known)
        starts = _together(before.replicas[each] for each in known)
        gained = {name: max(0.0, value - starts.get(name, 0.0)) for name, value in ends.items()}
        seconds = now.at - before.at

    def state(name: str) -> int:
        return int(totals.get(name, 0))

    def oldest(name: str) -> float:
        return max((now.replicas[each].get(name, 0.0) for each in chosen), default=0.0)

    def rate(name: str) -> float | None:
        return gained[name] / seconds if seconds > 0 and name in gained else None

    finished = "vllm:request_num_preemptions_count"
    steps = "vllm:iteration_tokens_total"
    return Figures(
        running=state("vllm:num_requests_running"),
        waiting=state("vllm:num_requests_waiting"),
        swapped=state("vllm:num_requests_swapped"),
        queue_age=oldest("octavo:queue_age_seconds"),
        step_age=oldest("octavo:step_age_seconds"),
        device={each: state(f"octavo:kv_blocks|{each}|device") for each in DEVICE},
        host={each: state(f"octavo:kv_blocks|{each}|host") for each in HOST},
        generated=rate("vllm:generation_tokens_total"),
        computed=rate("octavo:prompt_tokens_computed_total"),
        found=rate("vllm:prompt_tokens_cached_total"),
        finished=rate(finished),
        steps=rate(f"{steps}_count"),
        step_tokens=_ratio(gained, f"{steps}_sum", f"{steps}_count"),
        first_token=_quantiles(gained, "vllm:time_to_first_token_seconds"),
        between_tokens=_quantiles(gained, "vllm:inter_token_latency_seconds"),
        preemptions=_ratio(gained, "vllm:num_preemptions_total", finished),
        hit_rate=_ratio(gained, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        ranks=tuple(_ranks(gained)),
    )


def _together(each: Iterable[Totals]) -> Totals:
    joined: Totals = {}
    for totals in each:
        for name, value in totals.items():
            joined[name] = joined.get(name, 0.0) + value
    return joined


def _ranks(gained: Totals) -> Iterable[RankFigures]:
    start, seconds = "octavo:rank_steps_total|", "octavo:rank_seconds_total"
    for rank in sorted(int(name.removeprefix(start)) for name in gained if name.startswith(start)):
        if steps := gained[f"{start}{rank}"]:
            computing = gained.get(f"{seconds}|computing|{rank}", 0.0)
            exchanging = gained.get(f"{seconds}|exchanging|{rank}", 0.0)
            whole = computing + exchanging
            yield RankFigures(rank, whole / steps, exchanging / whole if whole else 0.0)


def _ratio(gained: Totals, part: str, whole: str) -> float | None:
    return gained[part] / gained[whole] if gained.get(whole) else None


def _quantiles(gained: Totals, histogram: str) -> Quantiles | None:
    start = f"{histogram}_bucket|"
    buckets = sorted(
        (float(name.removeprefix(start)), value)
        for name, value in gained.items()
        if name.startswith(start)
    )
    if not buckets or not buckets[-1][1]:
        return None
    return _quantile(buckets, 0.5), _quantile(buckets, 0.95)


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """As Prometheus has it: evenly spread within a bucket, and what is above the last bound is as
    much as that. `buckets` are (bound, number up to it)."""
    wanted = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
