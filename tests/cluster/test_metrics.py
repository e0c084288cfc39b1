"""The scrape is parsed back by Prometheus' own parser."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.cluster.api.metrics import read_spelling, render_metrics
from octavo.cluster.observer import Observer
from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.progress import Tally
from tests.scheduler.simulation import Simulation, request

# Of vLLM 0.33; `vllm:lora_requests_info` is there where adapters are.
VLLM = {
    "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason",
    "kv_cache_usage_perc", "engine_sleep_state", "cache_config_info", "num_preemptions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total",
    "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total",
    "admission_rejections_total",
}  # fmt: skip
BLOCK_TIMES = [
    f"vllm:kv_block_{each}_seconds" for each in ("lifetime", "idle_before_evict", "reuse_gap")
]
LATENCIES = [
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
]


def snapshot(replica: str, measured: Measured) -> EngineStats:
    return EngineStats(
        replica=replica,
        capacity=Capacity(101, 16),
        max_model_len=512,
        max_num_seqs=8,
        running=3,
        waiting=2,
        blocks_used=25,
        blocks_cached=40,
        steps=7,
        seconds_since_step=0.0,
        fault=None,
        measured=measured,
    )


def scrape(*stats: EngineStats) -> tuple[dict[tuple[str, str, str], float], dict[str, str]]:
    """Values by (sample, engine, the one further label), and the type of each family."""
    values, types = {}, {}
    text = render_metrics({"my/model": stats}).decode()
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "my/model"
            engine = labels.pop("engine")
            assert labels.pop("replica") == engine
            names = ("le", "finished_reason", "mode", "kind", "reason", "state", "sleep_state")
            further = next((labels[name] for name in names if name in labels), "")
            further = f"{labels['tier']} {further}" if "tier" in labels else further
            values[sample.name, engine, further] = sample.value
    return values, types


def test_every_replica_is_a_series_of_its_own() -> None:
    first = Measured(preemptions=4, prefix_cache_hits=30, finished={"stop": 5, "length": 6})
    first.generation_tokens, first.requests_resumed = 77, 2
    values, types = scrape(snapshot("a", first), snapshot("b", Measured(peak_blocks_used=99)))
    assert values["vllm:num_requests_running", "a", ""] == 3
    assert values["vllm:num_requests_waiting", "b", ""] == 2
    assert values["vllm:kv_cache_usage_perc", "a", ""] == 0.25
    assert values["vllm:cache_config_info", "a", ""] == 1
    assert values["vllm:num_preemptions_total", "a", ""] == 4
    assert values["vllm:num_preemptions_total", "b", ""] == 0
    assert values["vllm:prefix_cache_hits_total", "a", ""] == 30
    assert values["vllm:prompt_tokens_cached_total", "a", ""] == 30
    assert values["vllm:generation_tokens_total", "a", ""] == 77
    assert values["vllm:request_success_total", "a", "stop"] == 5
    assert values["vllm:request_success_total", "a", "length"] == 6
    assert values["vllm:request_success_total", "b", "stop"] == 0
    assert values["octavo:kv_blocks_used_peak", "b", ""] == 99
    assert values["octavo:requests_resumed_total", "a", ""] == 2
    assert types["vllm:num_requests_running"] == "gauge"
    assert types["vllm:generation_tokens"] == "counter"
    for name in ("prefix_cache_queries", "prompt_tokens", "admission_rejections"):
        assert (f"vllm:{name}_total", "a", "") in values


def test_what_moves_between_the_tiers_is_counted_by_kind() -> None:
    measured = Measured(
        preemptions=7,
        preemptions_recompute=4,
        preemptions_swap=3,
        swap_fallbacks=2,
        blocks_swapped_out=10,
        blocks_swapped_in=11,
        blocks_stored=12,
        blocks_copied=13,
        host_prefix_hits=160,
    )
    stats = snapshot("a", measured)
    stats.host_blocks_used, stats.host_blocks_cached, stats.host_blocks_total = 30, 50, 120
    values, types = scrape(stats, snapshot("b", Measured()))
    for mode, count in (("recompute", 4), ("swap", 3)):
        assert values["octavo:preemptions_total", "a", mode] == count
        assert values["octavo:preemptions_total", "b", mode] == 0
    for kind, count in (("swap_out", 10), ("swap_in", 11), ("store", 12), ("copy", 13)):
        assert values["octavo:blocks_moved_total", "a", kind] == count
    assert values["vllm:num_preemptions_total", "a", ""] == 7
    assert values["octavo:preemption_fallbacks_total", "a", ""] == 2
    assert values["octavo:host_prefix_hits_total", "a", ""] == 160
    assert values["vllm:cpu_cache_usage_perc", "a", ""] == 0.25
    assert values["vllm:cpu_cache_usage_perc", "b", ""] == 0, "no host tier"
    assert values["octavo:host_blocks_cached", "a", ""] == 50
    assert types["octavo:blocks_moved"] == "counter"


def test_each_rank_is_a_series_of_its_own() -> None:
    stats = snapshot("a", Measured())
    stats.ranks = [Tally(40, 2.0, 0.5), Tally(39, 1.75, 0.75)]
    text = render_metrics({"m": [stats]}).decode()
    found = {
        (sample.name, sample.labels["rank"], sample.labels.get("part")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "rank" in sample.labels
    }
    seconds = "octavo:rank_seconds_total"
    assert found == {
        ("octavo:rank_steps_total", "0", None): 40,
        ("octavo:rank_steps_total", "1", None): 39,
        (seconds, "0", "computing"): 1.5,
        (seconds, "0", "exchanging"): 0.5,
        (seconds, "1", "computing"): 1.0,
        (seconds, "1", "exchanging"): 0.75,
    }


def test_what_the_router_decided_is_counted_where_the_requests_went() -> None:
    stats = snapshot("a", Measured(routed={"prefix": 5, "elsewhere": 1}, prefix_hits_expected=480))
    stats.backlog_tokens = 77
    values, types = scrape(stats, snapshot("b", Measured()))
    assert values["octavo:requests_routed_total", "a", "prefix"] == 5
    assert values["octavo:requests_routed_total", "a", "elsewhere"] == 1
    for reason in ("prefix", "queue", "new", "load", "none", "elsewhere"):
        assert values["octavo:requests_routed_total", "b", reason] == 0
    assert values["octavo:prefix_hits_expected_total", "a", ""] == 480
    assert values["octavo:backlog_tokens", "a", ""] == 77
    assert types["octavo:requests_routed"] == "counter"


def adapters_info(*stats: EngineStats) -> list[tuple[dict[str, str], float]]:
    text = render_metrics({"my/model": stats}).decode()
    return [
        (dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    ]


def test_adapters_that_run_and_wait_are_named_beside_the_time() -> None:
    sim = Simulation(adapters=("a", "b", "c"), max_loras=2)
    observer = Observer(sim.scheduler)
    idle = observer.snapshot("0", None, 0.0, 0.0)
    for number, adapter in enumerate(["b", "", "a", "b", "c"]):
        sim.add(request(str(number), [number] * 5, adapter=adapter))
    sim.step()
    busy = observer.snapshot("1", None, 0.0, 0.0)
    before = time.time()
    (first, _), (second, when) = adapters_info(idle, busy, snapshot("none", Measured()))
    common = {"model_name": "my/model", "max_lora": "2"}
    nothing = {"running_lora_adapters": "", "waiting_lora_adapters": ""}
    something = {"running_lora_adapters": "a,b", "waiting_lora_adapters": "c"}
    assert first == common | nothing | {"engine": "0", "replica": "0"}
    assert second == common | something | {"engine": "1", "replica": "1"}
    assert before <= when <= time.time()


def test_without_a_bound_all_adapters_may_run_and_without_adapters_nothing_is_said() -> None:
    scheduler = Simulation(adapters=("a", "b", "c")).scheduler
    ((labels, _),) = adapters_info(Observer(scheduler).snapshot("0", None, 0.0, 0.0))
    assert labels["max_lora"] == "3"
    assert adapters_info(snapshot("0", Measured())) == []


def test_histograms_are_cumulative() -> None:
    measured = Measured()
    measured.time_to_first_token.observe(0.003)
    measured.time_to_first_token.observe(0.02, times=2)
    measured.time_to_first_token.observe(9999)
    measured.iteration_tokens.observe(64)
    values, types = scrape(snapshot("a", measured))
    name = "vllm:time_to_first_token_seconds"
    assert values[f"{name}_bucket", "a", "0.001"] == 0
    assert values[f"{name}_bucket", "a", "0.005"] == 1
    assert values[f"{name}_bucket", "a", "0.02"] == 3
    assert values[f"{name}_bucket", "a", "640.0"] == 3
    assert values[f"{name}_bucket", "a", "+Inf"] == 4
    assert values[f"{name}_count", "a", ""] == 4
    assert values[f"{name}_sum", "a", ""] == 0.003 + 2 * 0.02 + 9999
    assert values["vllm:iteration_tokens_total_bucket", "a", "64.0"] == 1
    assert types["vllm:iteration_tokens_total"] == "histogram"


def test_all_histograms_are_there() -> None:
    values, types = scrape(snapshot("a", Measured()))
    others = ["prompt_tokens", "generation_tokens", "num_preemptions", "max_num_generation_tokens"]
    others += ["params_n", "params_max_tokens"]
    for name in [*LATENCIES, *BLOCK_TIMES, *(f"vllm:request_{each}" for each in others)]:
        assert types[name] == "histogram"
        assert values[f"{name}_count", "a", ""] == 0


def test_no_replica_gives_names_without_series() -> None:
    values, types = scrape()
    assert not values
    assert types["vllm:num_requests_running"] == "gauge"


def test_vllms_names_are_all_there() -> None:
    values, _ = scrape(snapshot("a", Measured()))
    assert {f"vllm:{name}" for name in VLLM} <= {name for name, *_ in values}


def test_blocks_are_told_by_tier_and_state_and_add_up() -> None:
    stats = snapshot("a", Measured())
    stats.blocks_shared = 5
    stats.host_blocks_used, stats.host_blocks_cached, stats.host_blocks_total = 30, 50, 120
    values, _ = scrape(stats)
    blocks = {key: value for (name, _, key), value in values.items() if name == "octavo:kv_blocks"}
    assert blocks == {
        "device private": 20, "device shared": 5, "device cached": 40, "device free": 35,
        "host held": 30, "host cached": 50, "host free": 40,
    }  # fmt: skip


def test_why_requests_wait_and_for_how_long() -> None:
    stats = snapshot("a", Measured())
    stats.waiting, stats.waiting_deferred, stats.waiting_swapped, stats.queue_age = 9, 2, 4, 1.5
    stats.seconds_since_step = 0.25
    values, _ = scrape(stats)
    assert values["vllm:num_requests_waiting_by_reason", "a", "capacity"] == 7
    assert values["vllm:num_requests_waiting_by_reason", "a", "deferred"] == 2
    assert values["vllm:num_requests_swapped", "a", ""] == 4
    assert values["octavo:queue_age_seconds", "a", ""] == 1.5
    assert values["octavo:step_age_seconds", "a", ""] == 0.25
    assert values["vllm:engine_sleep_state", "a", "awake"] == 1


def test_names_as_ray_writes_vllms() -> None:
    stats = snapshot("a", Measured())
    stats.worker_id = "0123"
    text = render_metrics({"m": [stats]}, read_spelling("ray")).decode()
    families = list(text_string_to_metric_families(text))
    names = {sample.name for family in families for sample in family.samples}
    assert {f"ray_vllm_{name}" for name in VLLM} <= names
    assert "ray_vllm_time_to_first_token_seconds_bucket" in names
    assert "ray_octavo_queue_age_seconds" in names
    assert not [name for name in names if ":" in name]
    for sample in (sample for family in families for sample in family.samples):
        assert (sample.labels["ReplicaId"], sample.labels["WorkerId"]) == ("a", "0123")


def test_other_spellings_are_refused() -> None:
    assert read_spelling(None) == read_spelling("vllm") == "vllm"
    with pytest.raises(InvalidRequest, match="names must be vllm or ray, got 'Ray'"):
        read_spelling("Ray")


def test_a_name_may_have_any_character() -> None:
    odd = 'a"b\\c\nd'
    text = render_metrics({odd: [snapshot(odd, Measured())]}).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == sample.labels["replica"] == odd


def test_a_snapshot_stays_as_it_was() -> None:
    measured = Measured(finished={"stop": 1}, preemptions=3)
    measured.block_idle.observe(2.0)
    taken = measured.copy()
    assert taken == measured
    measured.block_idle.observe(2.0)
    measured.finished["stop"] += 1
    assert (sum(taken.block_idle.counts), taken.finished, taken.preemptions) == (1, {"stop": 1}, 3)
