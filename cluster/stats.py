"""What an engine measures, as plain data that crosses process borders.

The engine counts and observes; the ingress renders Prometheus text from the latest snapshot of
every replica (`cluster/api/metrics.py`), so no metric depends on which process answers a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from octavo.scheduler.config import Capacity
from octavo.workers.progress import Tally

LATENCY_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BOUNDS = (0, 1, 2, 3, 5, 10)
SAMPLE_BOUNDS = (1, 2, 5, 10, 20)
BLOCK_BOUNDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
)  # fmt: skip


class Histogram(msgspec.Struct):
    """Counts of observations by upper bound (inclusive), the last bucket being everything above."""

    bounds: tuple[float, ...]
    counts: list[int] = []
    sum: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def copy(self) -> Histogram:
        return Histogram(self.bounds, self.counts.copy(), self.sum)


def _latency() -> Histogram:
    return Histogram(LATENCY_BOUNDS)


def _tokens() -> Histogram:
    return Histogram(TOKEN_BOUNDS)


def _blocks() -> Histogram:
    return Histogram(BLOCK_BOUNDS)


class Measured(msgspec.Struct):
    """Running totals of one engine since it started. Seconds, tokens, or requests."""

    preemptions: int = 0
    preemptions_recompute: int = 0
    preemptions_swap: int = 0
    swap_fallbacks: int = 0  # a swap was wanted, and the host had no room
    blocks_swapped_out: int = 0
    blocks_swapped_in: int = 0
    blocks_stored: int = 0  # written behind
    blocks_copied: int = 0  # on write
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    host_prefix_hits: int = 0  # those of them found on the host alone
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0  # recomputed ones after a preemption included
    generation_tokens: int = 0
    admission_rejections: int = 0
    requests_resumed: int = 0  # that another engine had taken before
    peak_blocks_used: int = 0
    prefix_hits_expected: int = 0  # prompt tokens that the router counted on
    routed: dict[str, int] = {}  # requests by the router's reason, `octavo.cluster.routing`
    finished: dict[str, int] = {}  # by finish reason
    time_to_first_token: Histogram = msgspec.field(default_factory=_latency)
    inter_token_latency: Histogram = msgspec.field(default_factory=_latency)
    time_per_output_token: Histogram = msgspec.field(default_factory=_latency)
    e2e_latency: Histogram = msgspec.field(default_factory=_latency)
    queue_time: Histogram = msgspec.field(default_factory=_latency)
    inference_time: Histogram = msgspec.field(default_factory=_latency)
    prefill_time: Histogram = msgspec.field(default_factory=_latency)
    decode_time: Histogram = msgspec.field(default_factory=_latency)
    request_prompt_tokens: Histogram = msgspec.field(default_factory=_tokens)
    request_generation_tokens: Histogram = msgspec.field(default_factory=_tokens)
    request_preemptions: Histogram = msgspec.field(
        default_factory=lambda: Histogram(PREEMPTION_BOUNDS)
    )
    iteration_tokens: Histogram = msgspec.field(
        default_factory=lambda: Histogram(STEP_TOKEN_BOUNDS)
    )
    request_longest: Histogram = msgspec.field(default_factory=_tokens)
    request_max_tokens: Histogram = msgspec.field(default_factory=_tokens)
    request_samples: Histogram = msgspec.field(default_factory=lambda: Histogram(SAMPLE_BOUNDS))
    block_lifetime: Histogram = msgspec.field(default_factory=_blocks)
    block_idle: Histogram = msgspec.field(default_factory=_blocks)
    block_reuse_gap: Histogram = msgspec.field(default_factory=_blocks)

    def copy(self) -> Measured:
        """The totals of this moment. Each request asks for them where engine and front share a
        process, so it does not take the long way of `deepcopy`."""
        copied: list[Any] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            copied.append(value.copy() if isinstance(value, Histogram | dict) else value)
        return Measured(*copied)


class EngineStats(msgspec.Struct):
    """A snapshot of one replica. `fault` is None while it serves, else why it does not."""

    replica: str
    capacity: Capacity
    max_model_len: int
    max_num_seqs: int
    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int  # free, but holding content that can still be found
    steps: int
    seconds_since_step: float  # of a step in flight; 0 when idle
    fault: str | None
    measured: Measured
    host_blocks_used: int = 0
    host_blocks_cached: int = 0
    host_blocks_total: int = 0
    blocks_queued: int = 0  # that waiting requests need to be admitted
    recent_ttft: float = 0.0  # seconds, see `FirstTokens.lately`
    recent_requests: int = 0  # that it speaks of
    backlog_tokens: int = 0  # to be computed of requests that wait for their first token
    blocks_shared: int = 0  # of those used, held more than once
    waiting_deferred: int = 0  # of those waiting, for others' results and not for room
    waiting_swapped: int = 0  # of those waiting, with their content on the host
    queue_age: float = 0.0  # seconds that the longest of them has waited
    worker_id: str = ""  # Ray's, of the process that Serve knows as the replica
    most_adapters: int = 0  # whose requests may run at once; 0 where none are served
    adapters_running: list[str] = []
    adapters_waiting: list[str] = []
    ranks: list[Tally] = []
    journal: str = ""  # the file where it records, if it does

    @property
    def kv_cache_usage(self) -> float:
        """Share of the usable blocks that requests hold, 0..1."""
        return self.blocks_used / max(1, self.capacity.usable_blocks)
