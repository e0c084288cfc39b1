"""Int8 weights of a model: which they are, what each rank holds, and that answers stay."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.kernels.quantized import quantize_rows
from octavo.kernels.reference import ReferenceKernels
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.config import WorkerConfig
from octavo.workers.loader import Checkpoint
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.weights import load_weights
from octavo.workers.parallel import Shard
from tests.workers.plans import BLOCK_SIZE, NUM_BLOCKS, generation_plans, run_plans
from tests.workers.ranks import execute_plans, run_ranks
from tests.workers.test_generation import make_worker, random_prompts
from tests.workers.test_tensor_parallel import compare

CPU = torch.device("cpu")
INT8 = {"quantization": "int8"}
SCORED = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=0)
PROMPTS = random_prompts(5, 33, 18)
STEP = 2.0**-7


def plans():
    return generation_plans(PROMPTS, 12, chunk=10, sampling=[SCORED] * len(PROMPTS))


@pytest.fixture(scope="module")
def on_levels(tmp_path_factory, tiny_model):
    """A checkpoint that int8 holds exactly, also when two ranks divide it: weights are multiples of
    one step, the largest of which both halves of every row have."""
    directory = tmp_path_factory.mktemp("levels") / "model"
    shutil.copytree(tiny_model("llama-bias"), directory)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            tensor.copy_((tensor / STEP).round().clamp(-127, 127) * STEP)
            tensor[:, 0] = tensor[:, -1] = 127 * STEP
    save_file(tensors, directory / "model.safetensors")
    return directory


def load(directory, rank=0, size=1, quantization="int8"):
    model = ModelConfig.from_directory(directory)
    shard, kernels = Shard.of(model, rank, size), ReferenceKernels()
    with Checkpoint(directory) as checkpoint:
        return load_weights(model, shard, checkpoint, torch.float32, CPU, kernels, quantization)


def test_the_layers_products_are_quantized_and_nothing_else(tiny_model):
    directory = tiny_model("llama", tie=False)
    exact, found = load(directory, quantization=None), load(directory)
    assert torch.equal(found.embedding, exact.embedding)
    assert found.head.scales is None and torch.equal(found.head.plain, exact.head.plain)
    for layer, expected in zip(found.layers, exact.layers, strict=True):
        for part in ("qkv", "output", "gate_up", "down"):
            weight, plain = getattr(layer, part).weight, getattr(expected, part).weight.plain
            levels, scales = quantize_rows(plain)
            assert torch.equal(weight.plain, levels) and torch.equal(weight.scales, scales)
        assert torch.equal(layer.input_norm, expected.input_norm)


def test_each_rank_has_the_scales_of_its_share(tiny_model):
    directory = tiny_model("llama")
    exact, whole = load(directory, quantization=None).layers[0], load(directory).layers[0]
    for rank in range(2):
        part = load(directory, rank, 2).layers[0]
        rows = slice(64 * rank, 64 * rank + 64)  # of 8 heads of 16
        assert torch.equal(part.qkv.weight.plain[:64], whole.qkv.weight.plain[rows])
        assert torch.equal(part.qkv.weight.scales[:64], whole.qkv.weight.scales[rows])
        levels, scales = quantize_rows(exact.output.weight.plain[:, rows])
        assert torch.equal(part.output.weight.plain, levels)
        assert torch.equal(part.output.weight.scales, scales)
        assert not torch.equal(scales, whole.output.weight.scales)


@pytest.mark.parametrize("kernels", ["native", "torch", "reference"])
def test_weights_on_levels_give_the_same_answers(on_levels, kernels):
    expected = run_plans(make_worker(on_levels), plans())
    found = run_plans(make_worker(on_levels, kernels=kernels, **INT8), plans())
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    compare(found, expected, 1e-4)


def test_two_ranks_give_them_too(on_levels):
    config = WorkerConfig(
        str(on_levels), block_size=BLOCK_SIZE, tensor_parallel_size=2, quantization="int8"
    )
    encoded = [encode(plan) for plan in plans()]
    (run,), (silent,) = run_ranks(2, execute_plans, [config], encoded, NUM_BLOCKS)
    assert not any(silent)
    expected = run_plans(make_worker(on_levels), plans())
    found = [decode_result(answer) for answer in run]
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    compare(found, expected, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_weights_give_scores_that_are_close(tiny_model, dtype):
    directory = tiny_model("qwen3", kv_heads=2)
    prefill = [plan for plan in plans() if plan.step < 4]
    exact, found = (
        run_plans(make_worker(directory, dtype=dtype, **settings), prefill)
        for settings in ({}, INT8)
    )
    pairs = [
        (one.logprob, other.logprob)
        for a, b in zip(exact, found, strict=True)
        for row, entries in a.prompt_logprobs.items()
        for one, other in zip(entries, b.prompt_logprobs[row], strict=True)
    ]
    differences = [abs(one - other) for one, other in pairs]
    assert len(pairs) > 40
    assert 1e-4 < sum(differences) / len(differences) < 0.1


def test_another_quantization_is_refused():
    with pytest.raises(InvalidRequest, match="must be int8, fp8 or left out, got 'int3'") as error:
        WorkerConfig("model", quantization="int3")
    assert error.value.param == "quantization"
