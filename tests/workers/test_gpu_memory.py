"""How much of a GPU the cache gets, measured on one that is made of numbers."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.cache import Layout
from octavo.workers.gpu_memory import Trial, explained, gpu_budget, profile
from octavo.workers.graphs import graphs_bytes

GIB = 2**30
MIB = 2**20
QWEN3_8B = Layout(36, 8, 16, 128, torch.bfloat16)


class Gpu:
    """`tensors` are in use, `kept` is what torch holds beyond them; `others` takes the rest."""

    def __init__(self, total=80 * GIB, tensors=15 * GIB, others=2 * GIB):
        self.total, self.tensors, self.others = total, tensors, others
        self.kept = self.most = 0

    def use(self, size):
        self.tensors += size
        self.most = max(self.most, self.tensors)
        if self.tensors + self.others > self.total:
            self.tensors -= size
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")

    def settle(self):
        self.kept = 0

    def allocated(self):
        return self.tensors

    def peak(self):
        return self.most

    def forget_peak(self):
        self.most = self.tensors

    def reserved(self):
        return self.tensors + self.kept

    def free_and_total(self):
        return self.total - self.reserved() - self.others, self.total


def step_of(gpu, peak, libraries=0):
    def step():
        gpu.use(peak)
        gpu.tensors -= peak
        gpu.kept += peak
        gpu.others += libraries

    return step


NONE = Trial((), lambda size: None, lambda: None)


def test_what_a_step_and_the_graphs_take_is_kept_free():
    gpu = Gpu()
    recorded = []

    def record(size):
        recorded.append(size)
        gpu.tensors += 300 * MIB if size == 256 else 10 * MIB

    def discard():
        gpu.tensors = 15 * GIB

    trial = Trial((1, 2, 128, 256), record, discard)
    budget = profile(gpu, 0.9, step_of(gpu, 3 * GIB, libraries=GIB), trial)
    assert recorded == [256, 128]
    graphs = 300 * MIB + 3 * 10 * MIB
    left = 72 * GIB - 15 * GIB - 3 * GIB - 3 * GIB - graphs
    assert abs(budget.cache_bytes - left) <= 1
    assert [size for _, size in budget.lines[1:]] == [-15 * GIB, -3 * GIB, -3 * GIB, -graphs]
    assert sum(size for _, size in budget.lines) == budget.cache_bytes
    assert gpu.allocated() == 15 * GIB


def test_without_graphs_none_are_counted():
    gpu = Gpu()
    budget = profile(gpu, 0.5, step_of(gpu, GIB), NONE)
    assert budget.cache_bytes == 40 * GIB - 15 * GIB - 2 * GIB - GIB
    assert not any("graphs" in what for what, _ in budget.lines)
    assert graphs_bytes(7, 3, 0) == 0
    assert graphs_bytes(7, 3, 1) == 7
    assert graphs_bytes(7, -1, 5) == 7, "memory that was free again is no gain"


def test_a_cache_that_is_too_small_is_explained_line_by_line():
    budget = gpu_budget(
        total=24 * GIB, utilization=0.9, weights=16 * GIB, others=GIB, peak=2 * GIB, graphs=GIB // 2
    )
    with pytest.raises(InvalidRequest) as caught:
        budget.num_blocks(QWEN3_8B, 40960)
    lines = caught.value.message.splitlines()
    assert lines[0] == "the KV cache has no room for one request of 40960 tokens:"
    figures = [" ".join(line.split()) for line in lines[1:-1]]
    assert figures == [
        "GPU memory times 0.9 (--gpu-memory-utilization) 21.60 GiB",
        "weights, and buffers beside them -16.00 GiB",
        "CUDA itself and other processes -1.00 GiB",
        "peak of the largest step -2.00 GiB",
        "CUDA graphs (none with --enforce-eager) -0.50 GiB",
        "left for the KV cache 2.10 GiB",
        "needed for 40960 tokens 5.63 GiB",
    ]
    fitting = (int(2.1 * GIB) // QWEN3_8B.block_bytes - 1) * 16
    assert lines[-1] == (
        f"the largest length that fits is {fitting} tokens: set --max-model-len {fitting} or "
        "less, or raise --gpu-memory-utilization"
    )
    assert budget.num_blocks(QWEN3_8B, fitting) * 16 == fitting + 16


def test_nothing_is_left_rather_than_less():
    budget = gpu_budget(total=8 * GIB, utilization=0.5, weights=6 * GIB, others=0, peak=0, graphs=0)
    assert budget.cache_bytes == 0
    with pytest.raises(InvalidRequest, match="largest length that fits is 0 tokens: raise --gpu"):
        budget.num_blocks(QWEN3_8B, 16)


@pytest.mark.parametrize("what", ["the largest step", "recording CUDA graphs"])
def test_running_out_of_memory_is_one_sentence(what):
    gpu = Gpu(total=20 * GIB)
    trial = Trial((8,), lambda size: gpu.use(4 * GIB), lambda: None)
    peak = 4 * GIB if what == "the largest step" else GIB
    with pytest.raises(InvalidRequest) as caught:
        profile(gpu, 0.9, step_of(gpu, peak), trial)
    assert caught.value.param == "gpu_memory_utilization"
    assert caught.value.message.startswith(
        f"the GPU ran out of memory for {what}: of its 20.00 GiB, this process held 15.00 GiB "
        "before, and 3.00 GiB are free now; raise --gpu-memory-utilization"
    )
    assert "\n" not in caught.value.message


def test_other_faults_are_not_explained_away():
    with pytest.raises(RuntimeError, match="something else"), explained("the weights", Gpu()):
        raise RuntimeError("something else")
