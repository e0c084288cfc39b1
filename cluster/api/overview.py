"""What the dashboard is told of all replicas, out of the snapshots that the front has in any case:
no engine is asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo.cluster.stats import LATENCY_BOUNDS, EngineStats, Histogram
from octavo.workers.progress import Tally

MOST_REPLICAS = 256  # that are listed


class ReplicaLine(msgspec.Struct, kw_only=True):
    """Totals since the replica's start, and the state of the moment, each under its name in
    `EngineStats` and `Measured`. Counts of `ttft` are those of `LATENCY_BOUNDS`, in seconds."""

    model: str
    replica: str
    fault: str | None
    running: int
    waiting: int
    max_num_seqs: int
    blocks: int
    blocks_used: int
    blocks_cached: int
    blocks_queued: int
    host_blocks: int
    host_blocks_used: int
    host_blocks_cached: int
    steps: int
    preemptions: int
    preemptions_swap: int
    finished: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_hits_expected: int
    recent_ttft: float
    ttft: list[int]
    ttft_sum: float
    routed: dict[str, int]
    ranks: list[Tally]
    journal: str


class OverviewAnswer(msgspec.Struct, kw_only=True):
    """`num_replicas` are all, of which the first `MOST_REPLICAS` are listed."""

    version: str
    models: list[str]
    ttft_bounds: list[float]
    num_replicas: int
    replicas: list[ReplicaLine]


def overview(version: str, models: Mapping[str, Sequence[EngineStats]]) -> OverviewAnswer:
    """Of snapshots by their model's name."""
    named = [(name, each) for name, stats in models.items() for each in stats]
    return OverviewAnswer(
        version=version,
        models=list(models),
        ttft_bounds=list(LATENCY_BOUNDS),
        num_replicas=len(named),
        replicas=[_line(name, each) for name, each in named[:MOST_REPLICAS]],
    )


def _line(model: str, stats: EngineStats) -> ReplicaLine:
    measured = stats.measured
    ttft: Histogram = measured.time_to_first_token
    return ReplicaLine(
        model=model,
        replica=stats.replica,
        fault=stats.fault,
        running=stats.running,
        waiting=stats.waiting,
        max_num_seqs=stats.max_num_seqs,
        blocks=stats.capacity.usable_blocks,
        blocks_used=stats.blocks_used,
        blocks_cached=stats.blocks_cached,
        blocks_queued=stats.blocks_queued,
        host_blocks=stats.host_blocks_total,
        host_blocks_used=stats.host_blocks_used,
        host_blocks_cached=stats.host_blocks_cached,
        steps=stats.steps,
        preemptions=measured.preemptions,
        preemptions_swap=measured.preemptions_swap,
        finished=sum(measured.finished.values()),
        prompt_tokens=measured.prompt_tokens,
        generation_tokens=measured.generation_tokens,
        prefix_cache_queries=measured.prefix_cache_queries,
        prefix_cache_hits=measured.prefix_cache_hits,
        prefix_hits_expected=measured.prefix_hits_expected,
        recent_ttft=stats.recent_ttft,
        ttft=ttft.counts,
        ttft_sum=ttft.sum,
        routed=measured.routed,
        ranks=stats.ranks,
        journal=stats.journal,
    )
