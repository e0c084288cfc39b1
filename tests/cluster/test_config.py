"""Settings: their checks name the flag, and their parts agree."""

import math

import pytest

from octavo.cluster.checkpoints.model_source import resolve_model
from octavo.cluster.cli import flags
from octavo.cluster.cli.sizes import parse_bytes, show_bytes, show_capacity
from octavo.cluster.config import CPU_STEP_TOKENS, CUDA_STEP_TOKENS, EngineConfig
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import InvalidRequest


def config(**changes):
    return EngineConfig(model="/m", served_model_names=("m",), **changes)


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("tensor_parallel_size", 0, "--tensor-parallel-size"),
        ("num_replicas", 0, "--num-replicas"),
        ("max_num_seqs", 0, "--max-num-seqs"),
        ("max_num_queued_reqs", 0, "--max-num-queued-reqs"),
        ("max_model_len", 1, "--max-model-len"),
        ("max_num_batched_tokens", 0, "--max-num-batched-tokens"),
        ("num_gpu_blocks_override", 1, "--num-gpu-blocks-override"),
        ("kv_cache_memory_bytes", 0, "--kv-cache-memory-bytes"),
        ("num_threads", 0, "--num-threads"),
        ("cuda_graph_sizes", [8, 0], "--cuda-graph-sizes"),
        ("block_size", 12, "--block-size"),
        ("gpu_memory_utilization", 1.5, "--gpu-memory-utilization"),
        ("swap_space", -1.0, "--swap-space"),
        ("swap_space", math.inf, "--swap-space"),
        ("preemption_mode", "sometimes", "--preemption-mode"),
        ("placement_group_strategy", "STRICT", "--placement-group-strategy"),
        ("allocation", "none", "--allocation"),
        ("watermark_low", -0.1, "--watermark-low"),
        ("watermark_low", 0.5, "--watermark-low"),
        ("watermark_high", 1.0, "--watermark-high"),
        ("watermark_high", math.nan, "--watermark-high"),
        ("max_loras", 0, "--max-loras"),
        ("max_lora_rank", 0, "--max-lora-rank"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(field, value, flag):
    with pytest.raises(InvalidRequest) as caught:
        config(**{field: value})
    assert caught.value.param == field
    wrong = value[-1] if isinstance(value, list) else value
    assert flag in caught.value.message and str(wrong) in caught.value.message


def test_the_step_budget_follows_the_device_unless_given():
    assert config(device="cpu").step_tokens == CPU_STEP_TOKENS
    assert config(device="cuda").step_tokens == CUDA_STEP_TOKENS
    assert config(device="cuda", max_num_batched_tokens=64).step_tokens == 64


def test_threads_are_shared_evenly_and_never_none(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert config().threads == 8
    assert config(tensor_parallel_size=2, num_replicas=2).threads == 2
    assert config(tensor_parallel_size=16).threads == 1
    assert config(num_threads=3).threads == 3


def test_parts_carry_the_settings_on():
    whole = config(
        block_size=32, max_num_seqs=7, max_num_batched_tokens=99, enable_prefix_caching=False
    )
    scheduler = whole.scheduler_config(max_model_len=1000)
    worker = whole.worker_config()
    assert (scheduler.block_size, worker.block_size) == (32, 32)
    assert (scheduler.max_num_seqs, worker.max_num_seqs) == (7, 7)
    assert (scheduler.max_num_batched_tokens, worker.max_num_batched_tokens) == (99, 99)
    assert scheduler.max_model_len == 1000 and not scheduler.enable_prefix_caching


def test_the_memory_settings_reach_scheduler_and_workers():
    whole = config(
        swap_space=1.5,
        preemption_mode="swap",
        watermark_low=0.1,
        watermark_high=0.2,
        revision="abc",
    )
    scheduler = whole.scheduler_config(max_model_len=1000)
    assert (scheduler.preemption_mode, scheduler.revision) == ("swap", "abc")
    assert (scheduler.watermark_low, scheduler.watermark_high) == (0.1, 0.2)
    assert whole.worker_config().swap_space == 1.5
    assert config().worker_config().swap_space is None, "the workers decide"


def test_the_graphs_settings_reach_the_workers():
    worker = config(enforce_eager=True, cuda_graph_sizes=[1, 8]).worker_config()
    assert (worker.enforce_eager, worker.cuda_graph_sizes) == (True, [1, 8])
    worker = config().worker_config()
    assert (worker.enforce_eager, worker.cuda_graph_sizes) == (False, None)
    parsed = flags.parse(["serve", "m", "--enforce-eager", "--cuda-graph-sizes", "1", "8"])
    assert (parsed.enforce_eager, parsed.cuda_graph_sizes) == (True, [1, 8])


@pytest.mark.parametrize("allocation", ["max", "pow2", "oracle"])
def test_what_reserves_memory_shares_none(allocation):
    reserving = config(allocation=allocation).scheduler_config(max_model_len=1000)
    assert (reserving.allocation, reserving.enable_prefix_caching) == (allocation, False)
    assert config().scheduler_config(max_model_len=1000).enable_prefix_caching


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1024", 1024),
        ("2GiB", 2 * 2**30),
        ("512MB", 512 * 10**6),
        ("1.5g", 1_500_000_000),
        (" 64 kib ", 65536),
        ("3Ti", 3 * 2**40),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 XB", "one", "1e9", "2 GiBs"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a size; write for example 2GiB"):
        parse_bytes(text)


def test_sizes_are_shown_briefly():
    assert show_bytes(3 * 2**30) == "3.00 GiB"
    assert show_bytes(512) == "512 B"


def test_capacity_counts_no_null_block():
    line = show_capacity(Capacity(num_blocks=1025, block_size=16), 2048)
    assert "1,024 blocks" in line and "16,384 tokens" in line
    assert line.endswith("maximum concurrency for 2,048 tokens per request: 8.00x")
    line = show_capacity(Capacity(1025, 16, num_host_blocks=4096), 2048)
    assert line.endswith("; 4,096 more on the host")


def test_a_directory_goes_by_its_name_and_by_what_was_typed(tmp_path):
    model = tmp_path / "tiny"
    model.mkdir()
    assert resolve_model(str(model)) == (model, ("tiny", str(model)))


def test_a_file_is_not_a_model(tmp_path):
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(InvalidRequest, match="is a file; name the directory"):
        resolve_model(str(file))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "tiny", "a/b/c"])
def test_what_is_neither_directory_nor_hub_name_is_said_so(name):
    with pytest.raises(InvalidRequest, match="there is no directory") as caught:
        resolve_model(name)
    assert name in caught.value.message


def test_a_hub_name_that_cannot_be_had_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidRequest) as caught:
        resolve_model("nobody/nothing")
    assert "nobody/nothing" in caught.value.message and "\n" not in caught.value.message
