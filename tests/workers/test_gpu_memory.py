"""How much of a GPU the cache gets, measured on one that is made of numbers."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.cache import Layout
from octavo.workers.config import WorkerConfig
from octavo.workers.gpu_memory import DIVIDE, Trial, Wanted, explained, gpu_budget, profile
from octavo.workers.graphs import graphs_bytes
from octavo.workers.largest_step import StepSize
from octavo.workers.worker import Worker

GIB = 2**30
MIB = 2**20
QWEN3_8B = Layout(36, 8, 16, 128, torch.bfloat16)
WANTED = Wanted(QWEN3_8B, 40960)
LARGEST = StepSize(8192, 256)


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


def step_of(gpu, peak, libraries=0, floor=0):
    """A step that takes `floor`, and what else its size has it take; the first loads libraries."""
    sizes = []

    def step(size):
        taken = floor + (peak - floor) * size.tokens // LARGEST.tokens
        gpu.use(taken)
        gpu.tensors -= taken
        gpu.kept += taken
        gpu.others += 0 if sizes else libraries
        sizes.append(size)

    step.sizes = sizes
    return step


def text_of(caught):
    """The lines of a refusal, without the blanks that put figures under each other."""
    assert caught.value.param == "gpu_memory_utilization"
    return [" ".join(line.split()) for line in caught.value.message.splitlines()]


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
    step = step_of(gpu, 3 * GIB, libraries=GIB)
    budget = profile(gpu, 0.9, LARGEST, step, trial, WANTED)
    assert step.sizes == [StepSize(512, 16), StepSize(2048, 64), StepSize(4096, 128), LARGEST]
    assert recorded == [256, 128]
    graphs = 300 * MIB + 3 * 10 * MIB
    left = 72 * GIB - 15 * GIB - 3 * GIB - 3 * GIB - graphs
    assert abs(budget.cache_bytes - left) <= 1
    assert [size for _, size in budget.lines[1:]] == [-15 * GIB, -3 * GIB, -3 * GIB, -graphs]
    assert sum(size for _, size in budget.lines) == budget.cache_bytes
    assert gpu.allocated() == 15 * GIB


def test_without_graphs_none_are_counted():
    gpu = Gpu()
    budget = profile(gpu, 0.5, LARGEST, step_of(gpu, GIB), NONE, WANTED, staging=MIB)
    assert budget.cache_bytes == 40 * GIB - 15 * GIB - 2 * GIB - GIB - MIB
    assert budget.lines[-1] == ("staging of small blocks for swaps", -MIB)
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
        "0.9 of 24.00 GiB (--gpu-memory-utilization) 21.60 GiB",
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


def test_a_largest_step_that_does_not_fit_is_explained_line_by_line():
    """24 GiB: 15 of weights, 2 of others; a step takes 1 GiB and 3/2 GiB for each 1,024 tokens."""
    gpu = Gpu(total=24 * GIB)
    with pytest.raises(InvalidRequest) as caught:
        profile(gpu, 0.9, LARGEST, step_of(gpu, 13 * GIB, floor=GIB), NONE, WANTED)
    assert text_of(caught) == [
        "the GPU ran out of memory for the largest step, of 8192 tokens and 256 sequences:",
        "0.9 of 24.00 GiB (--gpu-memory-utilization) 21.60 GiB",
        "weights, and buffers beside them -15.00 GiB",
        "CUDA itself and other processes -2.00 GiB",
        "peak of the largest step, estimated -13.00 GiB",
        "left for the KV cache 0.00 MiB",
        "needed for 40960 tokens 5.63 GiB",
        "the largest length that fits is 0 tokens: set --max-num-batched-tokens 512 and "
        f"--max-num-seqs 16, with which the largest length that fits is {small(1.75)} tokens "
        "(CUDA graphs not counted), or divide the model by a larger --tensor-parallel-size",
    ]


def small(peak):
    """What fits on the GPU above beside a step that takes so many GiB."""
    return (int(24 * 0.9 * GIB) - int((17 + peak) * GIB)) // QWEN3_8B.block_bytes * 16 - 16


def test_the_largest_step_that_leaves_room_enough_is_named():
    gpu, wanted = Gpu(total=24 * GIB), Wanted(QWEN3_8B, 4096)
    with pytest.raises(InvalidRequest, match="tokens 2048 and --max-num-seqs 64, with which"):
        profile(gpu, 0.9, LARGEST, step_of(gpu, 13 * GIB, floor=GIB), NONE, wanted)


def test_a_half_that_does_not_fit_is_explained_by_the_quarter():
    gpu = Gpu(total=24 * GIB)
    with pytest.raises(InvalidRequest) as caught:
        profile(gpu, 0.9, LARGEST, step_of(gpu, 20 * GIB), NONE, WANTED)
    lines = text_of(caught)
    assert lines[0] == (
        "the GPU ran out of memory for a part of the largest step, of 4096 tokens and 128 "
        "sequences (8192 tokens and 256 sequences are to be served):"
    )
    assert lines[4] == "peak of the largest step, estimated -20.00 GiB"
    assert lines[-1].startswith(
        "the largest length that fits is 0 tokens: set --max-num-batched-tokens 512 and --max"
    )


def test_where_no_step_fits_what_was_free_is_named():
    gpu = Gpu(total=20 * GIB)
    with pytest.raises(InvalidRequest) as caught:
        profile(gpu, 0.9, LARGEST, step_of(gpu, 4 * GIB, floor=4 * GIB), NONE, WANTED)
    lines = text_of(caught)
    assert "for a part of the largest step, of 512 tokens and 16 sequences" in lines[0]
    assert lines[4] == "peak of the largest step, more than -3.00 GiB"
    assert lines[-1] == (
        "the largest length that fits is 0 tokens: lower --max-num-batched-tokens or "
        "--max-num-seqs, or divide the model by a larger --tensor-parallel-size"
    )


def test_graphs_that_do_not_fit_are_explained_too():
    gpu = Gpu(total=20 * GIB)

    def record(size):
        gpu.use(4 * GIB if size == 4 else GIB // 2)

    trial = Trial((4, 8), record, lambda: None)
    with pytest.raises(InvalidRequest) as caught:
        profile(gpu, 1, LARGEST, step_of(gpu, GIB), trial, WANTED)
    fitting = 2 * GIB // QWEN3_8B.block_bytes * 16 - 16
    assert text_of(caught) == [
        "the GPU ran out of memory for recording CUDA graphs:",
        "1 of 20.00 GiB (--gpu-memory-utilization) 20.00 GiB",
        "weights, and buffers beside them -15.00 GiB",
        "CUDA itself and other processes -2.00 GiB",
        "peak of the largest step -1.00 GiB",
        "CUDA graphs, more than -3.00 GiB",
        "left for the KV cache 0.00 MiB",
        "needed for 40960 tokens 5.63 GiB",
        "the largest length that fits is 0 tokens: set --enforce-eager, with which the largest "
        f"length that fits is {fitting} tokens, lower --cuda-graph-sizes, or divide the model by a "
        "larger --tensor-parallel-size",
    ]


def test_a_workers_own_steps_are_what_is_measured(tiny_model):
    """Its real steps, of which the GPU of numbers refuses those beyond 50 tokens."""
    config = WorkerConfig(str(tiny_model("llama")), max_num_batched_tokens=100, max_num_seqs=7)
    worker, gpu = Worker(config), Gpu(total=24 * GIB)
    worker.load()

    def step(size):
        worker.largest_step(size)
        gpu.use(GIB if size.tokens <= 50 else 10 * GIB)
        gpu.tensors -= GIB

    wanted = Wanted(worker.layout, worker.max_model_len)
    with pytest.raises(InvalidRequest, match="set --max-num-batched-tokens 50 and --max-num-seqs 3,"
                       ):  # fmt: skip
        profile(gpu, 0.9, StepSize(100, 7), step, NONE, wanted)
    assert worker.progress.ticks == 4 * 2  # a sixteenth, a quarter, a half and all, of two layers


def test_sizes_of_steps_rise():
    assert StepSize(1, 1).rising() == [StepSize(1, 1)]
    assert StepSize(8, 3).rising() == [StepSize(1, 1), StepSize(2, 1), StepSize(4, 1),
                                       StepSize(8, 3)]  # fmt: skip


def test_running_out_of_memory_elsewhere_is_one_sentence():
    gpu = Gpu(total=20 * GIB)
    with pytest.raises(InvalidRequest) as caught, explained("the weights", gpu, DIVIDE):
        gpu.use(4 * GIB)
    assert text_of(caught) == [
        "the GPU ran out of memory for the weights: of its 20.00 GiB, this process held 15.00 GiB "
        "before, and 3.00 GiB are free now; divide the model by a larger --tensor-parallel-size"
    ]


def test_other_faults_are_not_explained_away():
    gpu = Gpu()

    def fail(size):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"), explained("weights", gpu, DIVIDE):
        fail(LARGEST)
    with pytest.raises(RuntimeError, match="something else"):
        profile(gpu, 0.9, LARGEST, fail, NONE, WANTED)
