"""Sizing the block pool, and what is said when it is too small."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.plan import Add, StepPlan, Work
from octavo.workers.cache import (
    CPU_CAP,
    Budget,
    Layout,
    available_memory,
    container_memory,
    cpu_budget,
    given_budget,
)
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker
from tests.tiny import CONTEXT
from tests.workers.plans import GREEDY, run_plans

GIB = 2**30
QWEN3_8B = Layout(36, 8, 16, 128, torch.bfloat16)


def test_bytes_of_a_block():
    assert QWEN3_8B.block_bytes == 16 * 147456
    assert Layout(40, 40, 16, 128, torch.float16).block_bytes == 16 * 819200


def test_the_tensor_holds_zeros_in_the_agreed_order():
    tensor = Layout(3, 2, 4, 8, torch.bfloat16).allocate(5, torch.device("cpu"))
    assert tensor.shape == (5, 3, 2, 2, 4, 8)
    assert tensor.is_contiguous()
    assert not tensor.any()


def test_whole_blocks_are_counted_the_null_block_included():
    block = QWEN3_8B.block_bytes
    assert given_budget(100 * block + block - 1).num_blocks(QWEN3_8B, 99 * 16) == 100
    with pytest.raises(InvalidRequest):
        given_budget(100 * block).num_blocks(QWEN3_8B, 99 * 16 + 1)


def test_a_pool_that_is_too_small_is_explained_line_by_line():
    budget = cpu_budget(2 * GIB, ranks=2)
    with pytest.raises(InvalidRequest) as error:
        budget.num_blocks(QWEN3_8B, 40960)
    assert error.value.param == "kv_cache_memory_bytes"
    text = error.value.message
    blocks = int(2 * GIB * 0.4) // 2 // QWEN3_8B.block_bytes
    for words in (
        "no room for one request of 40960 tokens",
        "free memory after loading the weights",
        "2.00 GiB",
        "share for the KV cache (40%)",
        "each of 2 ranks",
        "needed for 40960 tokens",
        "5.63 GiB",
        f"set --max-model-len {(blocks - 1) * 16} or less",
        "--kv-cache-memory-bytes",
    ):
        assert words in text
    assert budget.num_blocks(QWEN3_8B, (blocks - 1) * 16) == blocks
    with pytest.raises(InvalidRequest, match="largest length that fits is 0 tokens: give more"):
        given_budget(10).num_blocks(QWEN3_8B, 16)


def test_the_cpu_takes_a_share_but_not_everything():
    assert cpu_budget(GIB, 1).cache_bytes == int(0.4 * GIB)
    assert cpu_budget(GIB, 4).cache_bytes == int(0.4 * GIB) // 4
    assert cpu_budget(1000 * GIB, 1).cache_bytes == CPU_CAP
    assert cpu_budget(1000 * GIB, 2).cache_bytes == CPU_CAP // 2


def test_a_container_limit_counts(tmp_path):
    assert container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert container_memory(tmp_path) == 2 * GIB
    (tmp_path / "memory.current").write_text(f"{4 * GIB}\n")
    assert container_memory(tmp_path) == 0
    assert available_memory() > 0


def test_the_largest_step_touches_no_row(tiny_model):
    config = WorkerConfig(str(tiny_model("llama")), max_num_batched_tokens=100, max_num_seqs=7)
    worker = Worker(config)
    worker.load()
    worker.largest_step()
    assert worker.progress.ticks == 2
    worker.allocate(4)
    plan = StepPlan(0, [Work(0, 0, 3, True)], add=[Add(0, [5, 6, 7], 3, [1], 0, GREEDY)])
    (result,) = run_plans(worker, [plan])
    assert len(result.tokens) == 1


def test_pages_are_written_soon_of_the_cache_that_serves_alone(tiny_model, monkeypatch):
    sizes = []
    monkeypatch.setattr("octavo.workers.cache.write_pages_soon", lambda _, size: sizes.append(size))
    worker = Worker(WorkerConfig(str(tiny_model("llama")), max_num_batched_tokens=100))
    worker.load()
    worker.largest_step()
    assert sizes == []
    worker.allocate(8)
    assert sizes == [2 * worker.layout.block_bytes]


def test_the_worker_measures_what_it_is_told(tiny_model):
    directory = str(tiny_model("llama"))

    def measure(**settings):
        worker = Worker(WorkerConfig(directory, block_size=16, **settings))
        worker.load()
        return worker.measure()

    block = Layout(2, 4, 16, 16, torch.float32).block_bytes
    needed = CONTEXT // 16 + 1
    assert measure(num_blocks_override=3) == 3
    assert measure(kv_cache_memory_bytes=50 * block) == 50
    assert measure() >= needed
    with pytest.raises(InvalidRequest, match=f"--max-model-len {CONTEXT - 16} or less"):
        measure(kv_cache_memory_bytes=(needed - 1) * block)
    assert measure(kv_cache_memory_bytes=(needed - 1) * block, max_model_len=CONTEXT - 16) == 32


def test_budget_lines_are_for_people():
    with pytest.raises(InvalidRequest, match=r"something +12\.00 MiB"):
        Budget(0, (("something", 12 * 2**20),)).num_blocks(QWEN3_8B, 1)
