"""What `/metrics` tells of a replica: names, kinds, explanations, and where each figure comes from.

vLLM's names (version 0.33), so that its dashboards and scalers work; `octavo:` where it has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from octavo.cluster.routing.route import ELSEWHERE
from octavo.cluster.routing.routing import Reason
from octavo.cluster.stats import EngineStats, Histogram

Reading = float | Histogram | Mapping[str, float]
"""The value of one replica, or values by the label, written out, that tells them apart."""


class Family(NamedTuple):
    """A counter's name is without the `_total` that it is shown with."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    read: Callable[[EngineStats], Reading]


def write_labels(labels: Mapping[str, object]) -> str:
    """`name="value"` and so on, as the exposition format wants it."""
    return ",".join(f'{name}="{_escape(str(value))}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _by(label: str, values: Mapping[str, float]) -> Reading:
    return {write_labels({label: value}): number for value, number in values.items()}


def _counts(label: str, known: Iterable[str], found: Mapping[str, int]) -> Reading:
    """Those known are there from the start, so that a first one is seen to come."""
    return _by(label, {name: found.get(name, 0) for name in sorted({*known, *found})})


def _gauge(name: str, text: str, read: Callable[[EngineStats], Reading]) -> Family:
    return Family(name, "gauge", text, read)


def _count(name: str, text: str, read: Callable[[Any], Reading]) -> Family:
    return Family(name, "counter", text, lambda each: read(each.measured))


def _observed(name: str, text: str, field: str) -> Family:
    return Family(name, "histogram", text, attrgetter(f"measured.{field}"))


def _blocks(each: EngineStats) -> Reading:
    usable = each.capacity.usable_blocks
    device = {
        "private": each.blocks_used - each.blocks_shared,
        "shared": each.blocks_shared,
        "cached": each.blocks_cached,
        "free": usable - each.blocks_used - each.blocks_cached,
    }
    host = {
        "held": each.host_blocks_used,
        "cached": each.host_blocks_cached,
        "free": each.host_blocks_total - each.host_blocks_used - each.host_blocks_cached,
    }
    tiers = (("device", device), ("host", host))
    return {
        write_labels({"state": state, "tier": tier}): number
        for tier, states in tiers
        for state, number in states.items()
    }


def _cache_config(each: EngineStats) -> Reading:
    shape = {
        "block_size": each.capacity.block_size,
        "num_gpu_blocks": each.capacity.num_blocks,
        "num_cpu_blocks": each.capacity.num_host_blocks,
        "max_model_len": each.max_model_len,
    }
    return {write_labels(shape): 1}


def _adapters(each: EngineStats) -> Reading:
    """vLLM's: names in labels, and the value is the time, by which the latest can be told."""
    if not each.most_adapters:
        return {}
    serving = {
        "max_lora": each.most_adapters,
        "running_lora_adapters": ",".join(each.adapters_running),
        "waiting_lora_adapters": ",".join(each.adapters_waiting),
    }
    return {write_labels(serving): time.time()}


def _rank_steps(each: EngineStats) -> Reading:
    return _by("rank", {str(rank): tally.steps for rank, tally in enumerate(each.ranks)})


def _rank_seconds(each: EngineStats) -> Reading:
    return {
        write_labels({"part": part, "rank": rank}): seconds
        for rank, tally in enumerate(each.ranks)
        for part, seconds in (
            ("computing", tally.seconds - tally.exchanging),
            ("exchanging", tally.exchanging),
        )
    }


_GAUGES = [
    _gauge(
        "vllm:num_requests_running",
        "Requests that hold blocks and are being computed.",
        attrgetter("running"),
    ),
    _gauge("vllm:num_requests_waiting", "Requests in the queue.", attrgetter("waiting")),
    _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Requests in the queue, for room (capacity), or until a step in flight has ended that "
        "computes their prefix or their own last token (deferred).",
        lambda each: _by(
            "reason",
            {
                "capacity": each.waiting - each.waiting_deferred,
                "deferred": each.waiting_deferred,
            },
        ),
    ),
    _gauge(
        "vllm:num_requests_swapped",
        "Requests in the queue whose content is on the host.",
        attrgetter("waiting_swapped"),
    ),
    _gauge(
        "octavo:queue_age_seconds",
        "How long the request has waited that has waited longest; since it was preempted, if so.",
        attrgetter("queue_age"),
    ),
    _gauge(
        "octavo:step_age_seconds",
        "How long the step under way has taken; 0 at rest.",
        attrgetter("seconds_since_step"),
    ),
    _gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the cache's blocks that requests hold, 0 to 1.",
        attrgetter("kv_cache_usage"),
    ),
    _gauge(
        "octavo:kv_blocks",
        "Blocks by tier and state: held once (private) or more often (shared), on the host held by "
        "preempted requests; free with content that can be found (cached); free.",
        _blocks,
    ),
    _gauge(
        "octavo:kv_blocks_used_peak",
        "Most blocks that requests held at once.",
        attrgetter("measured.peak_blocks_used"),
    ),
    _gauge(
        "octavo:kv_blocks_cached",
        "Free blocks whose content can still be found.",
        attrgetter("blocks_cached"),
    ),
    _gauge(
        "vllm:cpu_cache_usage_perc",
        "Share of the host tier's blocks that preempted requests hold, 0 to 1.",
        lambda each: each.host_blocks_used / max(1, each.host_blocks_total),
    ),
    _gauge(
        "octavo:host_blocks_cached",
        "Host blocks whose content can be found and that may be taken.",
        attrgetter("host_blocks_cached"),
    ),
    _gauge(
        "octavo:backlog_tokens",
        "Prompt tokens that are expected to be computed for requests without a first token.",
        attrgetter("backlog_tokens"),
    ),
    _gauge("vllm:cache_config_info", "The cache's shape.", _cache_config),
    _gauge(
        "vllm:lora_requests_info",
        "Adapters whose requests run and wait; the value is when.",
        _adapters,
    ),
    _gauge(
        "vllm:engine_sleep_state",
        "Whether the engine sleeps: Octavo's never do.",
        lambda _: _by("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}),
    ),
]
_COUNTERS = [
    _count(
        "vllm:num_preemptions",
        "Times a running request was preempted.",
        attrgetter("preemptions"),
    ),
    _count(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the cache.",
        attrgetter("prefix_cache_queries"),
    ),
    _count(
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the cache.",
        attrgetter("prefix_cache_hits"),
    ),
    _count(
        "vllm:prompt_tokens", "Prompt tokens of admitted requests.", attrgetter("prompt_tokens")
    ),
    _count(
        "vllm:prompt_tokens_cached",
        "Prompt tokens that were not computed.",
        attrgetter("prefix_cache_hits"),
    ),
    _count("vllm:generation_tokens", "Tokens generated.", attrgetter("generation_tokens")),
    _count(
        "vllm:admission_rejections",
        "Requests refused: the queue was full.",
        attrgetter("admission_rejections"),
    ),
    _count(
        "vllm:request_success",
        "Finished requests by reason.",
        lambda m: _counts("finished_reason", ("stop", "length", "abort"), m.finished),
    ),
    _count(
        "octavo:requests_resumed",
        "Requests taken over from a replica that died, with what it had generated.",
        attrgetter("requests_resumed"),
    ),
    _count(
        "octavo:requests_routed",
        "Requests by the reason for which the router chose this replica.",
        lambda m: _counts("reason", {*Reason, ELSEWHERE}, m.routed),
    ),
    _count(
        "octavo:prefix_hits_expected",
        "Prompt tokens that the router expected in the cache of the replica that it chose.",
        attrgetter("prefix_hits_expected"),
    ),
    _count(
        "octavo:host_prefix_hits",
        "Prompt tokens found on the host alone.",
        attrgetter("host_prefix_hits"),
    ),
    _count(
        "octavo:prompt_tokens_computed",
        "Prompt tokens computed, again after a preemption included.",
        attrgetter("prompt_tokens_computed"),
    ),
    _count(
        "octavo:preemptions",
        "Preemptions by what became of the blocks.",
        lambda m: _by("mode", {"recompute": m.preemptions_recompute, "swap": m.preemptions_swap}),
    ),
    _count(
        "octavo:preemption_fallbacks",
        "Preemptions that recomputed although a swap was wanted: no room on the host.",
        attrgetter("swap_fallbacks"),
    ),
    _count(
        "octavo:blocks_moved",
        "Blocks copied: to the host at a preemption, back to the device, to the host ahead of "
        "pressure, and before a write into a shared one.",
        lambda m: _by(
            "kind",
            {
                "swap_out": m.blocks_swapped_out,
                "swap_in": m.blocks_swapped_in,
                "store": m.blocks_stored,
                "copy": m.blocks_copied,
            },
        ),
    ),
    Family("octavo:rank_steps", "counter", "Steps that a rank has computed.", _rank_steps),
    Family(
        "octavo:rank_seconds",
        "counter",
        "Seconds of a rank's steps: those in which it exchanged values with the other ranks or "
        "waited for them (on a GPU that is part of its computing), and all the others.",
        _rank_seconds,
    ),
]
_HISTOGRAMS = [
    _observed("vllm:time_to_first_token_seconds", "Arrival to first token.", "time_to_first_token"),
    _observed("vllm:inter_token_latency_seconds", "Between two tokens.", "inter_token_latency"),
    _observed(
        "vllm:request_time_per_output_token_seconds",
        "Mean time a token after the first, one observation a request.",
        "time_per_output_token",
    ),
    _observed("vllm:e2e_request_latency_seconds", "Arrival to end.", "e2e_latency"),
    _observed("vllm:request_queue_time_seconds", "Arrival to first scheduling.", "queue_time"),
    _observed("vllm:request_inference_time_seconds", "First scheduling to end.", "inference_time"),
    _observed(
        "vllm:request_prefill_time_seconds", "First scheduling to first token.", "prefill_time"
    ),
    _observed("vllm:request_decode_time_seconds", "First token to end.", "decode_time"),
    _observed("vllm:request_prompt_tokens", "Prompt tokens of a request.", "request_prompt_tokens"),
    _observed(
        "vllm:request_generation_tokens",
        "Tokens a request generated.",
        "request_generation_tokens",
    ),
    _observed(
        "vllm:request_max_num_generation_tokens",
        "Tokens of a request's longest sample.",
        "request_longest",
    ),
    _observed("vllm:request_params_max_tokens", "Tokens a request allowed.", "request_max_tokens"),
    _observed("vllm:request_params_n", "Samples a request asked for.", "request_samples"),
    _observed("vllm:request_num_preemptions", "Preemptions of a request.", "request_preemptions"),
    _observed("vllm:iteration_tokens_total", "Tokens computed in a step.", "iteration_tokens"),
    _observed(
        "vllm:kv_block_lifetime_seconds",
        "From a block's being handed out until its content is given up for another's; one block "
        "in eight.",
        "block_lifetime",
    ),
    _observed(
        "vllm:kv_block_idle_before_evict_seconds",
        "How long a block's content lay unused before it was given up; one block in eight.",
        "block_idle",
    ),
    _observed(
        "vllm:kv_block_reuse_gap_seconds",
        "How long a block's content lay unused before it was found again; one block in eight.",
        "block_reuse_gap",
    ),
]
FAMILIES = (*_GAUGES, *_COUNTERS, *_HISTOGRAMS)
