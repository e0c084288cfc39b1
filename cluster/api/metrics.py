"""Prometheus text from the engines' own counts, under vLLM's names.

Everything comes from the latest snapshot of every replica; nothing is counted here. So a scrape
gives the same figures whichever process answers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from octavo.cluster.routing.route import ELSEWHERE
from octavo.cluster.routing.routing import Reason
from octavo.cluster.stats import EngineStats, Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_LABELS = ("model_name", "engine")

_GAUGES: dict[str, tuple[Callable[[EngineStats], float], str]] = {
    "vllm:num_requests_running": (
        lambda each: each.running,
        "Requests that hold blocks and are being computed.",
    ),
    "vllm:num_requests_waiting": (lambda each: each.waiting, "Requests in the queue."),
    "vllm:kv_cache_usage_perc": (
        lambda each: each.kv_cache_usage,
        "Share of the cache's blocks that requests hold, 0 to 1.",
    ),
    "octavo:kv_blocks_used_peak": (
        lambda each: each.measured.peak_blocks_used,
        "Most blocks that requests held at once.",
    ),
    "octavo:kv_blocks_cached": (
        lambda each: each.blocks_cached,
        "Free blocks whose content can still be found.",
    ),
    "vllm:cpu_cache_usage_perc": (
        lambda each: each.host_blocks_used / max(1, each.host_blocks_total),
        "Share of the host tier's blocks that preempted requests hold, 0 to 1.",
    ),
    "octavo:backlog_tokens": (
        lambda each: each.backlog_tokens,
        "Prompt tokens that are expected to be computed for requests without a first token.",
    ),
    "octavo:host_blocks_cached": (
        lambda each: each.host_blocks_cached,
        "Host blocks whose content can be found and that may be taken.",
    ),
}
_COUNTERS = {
    "vllm:num_preemptions": ("preemptions", "Times a running request was preempted."),
    "vllm:prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the cache."),
    "vllm:prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the cache."),
    "vllm:prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "vllm:prompt_tokens_cached": ("prefix_cache_hits", "Prompt tokens that were not computed."),
    "vllm:generation_tokens": ("generation_tokens", "Tokens generated."),
    "vllm:admission_rejections": ("admission_rejections", "Requests refused: the queue was full."),
    "octavo:requests_resumed": (
        "requests_resumed",
        "Requests taken over from a replica that died, with what it had generated.",
    ),
    "octavo:prompt_tokens_computed": (
        "prompt_tokens_computed",
        "Prompt tokens computed, again after a preemption included.",
    ),
    "octavo:preemption_fallbacks": (
        "swap_fallbacks",
        "Preemptions that recomputed although a swap was wanted: no room on the host.",
    ),
    "octavo:host_prefix_hits": ("host_prefix_hits", "Prompt tokens found on the host alone."),
    "octavo:prefix_hits_expected": (
        "prefix_hits_expected",
        "Prompt tokens that the router expected in the cache of the replica that it chose.",
    ),
}
# Counters with one more label: its name, then the field that counts for each of its values.
_LABELLED = {
    "octavo:preemptions": (
        "mode",
        {"recompute": "preemptions_recompute", "swap": "preemptions_swap"},
        "Preemptions by what became of the blocks.",
    ),
    "octavo:blocks_moved": (
        "kind",
        {
            "swap_out": "blocks_swapped_out",
            "swap_in": "blocks_swapped_in",
            "store": "blocks_stored",
            "copy": "blocks_copied",
        },
        "Blocks copied: to the host at a preemption, back to the device, to the host ahead of "
        "pressure, and before a write into a shared one.",
    ),
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("time_to_first_token", "Arrival to first token."),
    "vllm:inter_token_latency_seconds": ("inter_token_latency", "Between two tokens."),
    "vllm:request_time_per_output_token_seconds": (
        "time_per_output_token",
        "Mean time a token after the first, one observation a request.",
    ),
    "vllm:e2e_request_latency_seconds": ("e2e_latency", "Arrival to end."),
    "vllm:request_queue_time_seconds": ("queue_time", "Arrival to first scheduling."),
    "vllm:request_inference_time_seconds": ("inference_time", "First scheduling to end."),
    "vllm:request_prefill_time_seconds": ("prefill_time", "First scheduling to first token."),
    "vllm:request_decode_time_seconds": ("decode_time", "First token to end."),
    "vllm:request_prompt_tokens": ("request_prompt_tokens", "Prompt tokens of a request."),
    "vllm:request_generation_tokens": ("request_generation_tokens", "Tokens a request generated."),
    "vllm:request_num_preemptions": ("request_preemptions", "Preemptions of a request."),
    "vllm:iteration_tokens_total": ("iteration_tokens", "Tokens computed in a step."),
}


def render_metrics(models: Mapping[str, Sequence[EngineStats]]) -> bytes:
    """The text exposition of one scrape: snapshots of all replicas by their model's name."""
    registry = CollectorRegistry(auto_describe=False)
    named = [(name, each) for name, stats in models.items() for each in stats]
    registry.register(_Snapshots(named))
    return generate_latest(registry)


class _Snapshots(Collector):
    """Of all replicas, each with the name of its model."""

    def __init__(self, named: Sequence[tuple[str, EngineStats]]) -> None:
        self._named = named

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield self._cache_config()
        yield from self._adapters()
        for name, (field, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for model, each in self._named:
                counter.add_metric([model, each.replica], getattr(each.measured, field))
            yield counter
        yield from self._labelled()
        yield self._routed()
        yield self._finished()
        for name, (field, text) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=_LABELS)
            for model, each in self._named:
                observed: Histogram = getattr(each.measured, field)
                buckets = list(_cumulative(observed))
                histogram.add_metric([model, each.replica], buckets, observed.sum)
            yield histogram

    def _labelled(self) -> Iterator[Metric]:
        for name, (label, fields, text) in _LABELLED.items():
            counter = CounterMetricFamily(name, text, labels=(*_LABELS, label))
            for model, each in self._named:
                for value, field in fields.items():
                    labels = [model, each.replica, value]
                    counter.add_metric(labels, getattr(each.measured, field))
            yield counter

    def _routed(self) -> Metric:
        counter = CounterMetricFamily(
            "octavo:requests_routed",
            "Requests by the reason for which the router chose this replica.",
            labels=(*_LABELS, "reason"),
        )
        for model, each in self._named:
            for reason in sorted({*Reason, ELSEWHERE, *each.measured.routed}):
                counter.add_metric(
                    [model, each.replica, reason], each.measured.routed.get(reason, 0)
                )
        return counter

    def _finished(self) -> Metric:
        counter = CounterMetricFamily(
            "vllm:request_success",
            "Finished requests by reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for model, each in self._named:
            for reason in sorted({"stop", "length", "abort", *each.measured.finished}):
                count = each.measured.finished.get(reason, 0)
                counter.add_metric([model, each.replica, reason], count)
        return counter

    def _gauges(self) -> Iterator[Metric]:
        for name, (value, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for model, each in self._named:
                gauge.add_metric([model, each.replica], value(each))
            yield gauge

    def _cache_config(self) -> Metric:
        more = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "max_model_len")
        labels = (*_LABELS, *more)
        gauge = GaugeMetricFamily("vllm:cache_config_info", "The cache's shape.", labels=labels)
        for model, each in self._named:
            capacity = each.capacity
            shape = (
                capacity.block_size,
                capacity.num_blocks,
                capacity.num_host_blocks,
                each.max_model_len,
            )
            gauge.add_metric([model, each.replica, *map(str, shape)], 1)
        return gauge

    def _adapters(self) -> Iterator[Metric]:
        """vLLM's: names in labels, and the value is the time, by which the latest can be told."""
        serving = [(model, each) for model, each in self._named if each.most_adapters]
        if not serving:
            return
        more = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        gauge = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters whose requests run and wait; the value is when.",
            labels=(*_LABELS, *more),
        )
        now = time.time()
        for model, each in serving:
            running, waiting = ",".join(each.adapters_running), ",".join(each.adapters_waiting)
            gauge.add_metric([model, each.replica, str(each.most_adapters), running, waiting], now)
        yield gauge


def _cumulative(histogram: Histogram) -> Iterable[tuple[str, float]]:
    """Prometheus' buckets count everything up to their bound."""
    total = 0
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        yield bound, total
