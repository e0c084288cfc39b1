"""The model's logits against transformers', float32, for every family that is supported."""

from __future__ import annotations

import functools

import pytest
import torch

from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.select import select
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Work
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import Batcher
from octavo.workers.cache import Layout
from octavo.workers.loader import Checkpoint
from octavo.workers.model_config import ModelConfig
from octavo.workers.models import llama
from octavo.workers.models.llama import Llama
from octavo.workers.models.weights import load_weights
from octavo.workers.parallel import ALONE, Shard
from tests.tiny import CONTEXT, VOCABULARY

CPU = torch.device("cpu")
TOLERANCE = 1e-4


@functools.cache
def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def expected_logits(directory, tokens):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize(
    ("family", "kv_heads", "tie"),
    [
        ("llama", 4, True),
        ("llama", 8, False),
        ("llama-bias", 1, False),
        ("llama3", 4, True),
        ("linear", 2, True),
        ("mistral", 2, False),
        ("qwen2", 4, True),
        ("qwen2", 2, False),
        ("qwen3", 4, True),
        ("qwen3", 2, False),
    ],
)
def test_logits_of_a_ragged_batch_equal_transformers(tiny_model, family, kv_heads, tie):
    directory = tiny_model(family, kv_heads=kv_heads, tie=tie)
    config = ModelConfig.from_directory(directory)
    shard, kernels = Shard.of(config, 0, 1), ReferenceKernels()
    with Checkpoint(directory) as checkpoint:
        weights = load_weights(config, shard, checkpoint, torch.float32, CPU, kernels)
    model = Llama(config, shard, weights, kernels, ALONE, CONTEXT)
    cache = Layout.of(config, shard, 4, torch.float32).allocate(64, CPU)
    long, short = prompt(150), prompt(7)
    rows = {
        0: Row(long, 150, list(range(63, 25, -1)), 0, SamplingParams()),
        3: Row(short, 7, [5, 2], 0, SamplingParams()),
    }
    ticks = []

    def compute(work):
        step = Batcher(4, CPU).build(work, rows)
        tick = functools.partial(ticks.append, None)
        hidden = model.forward(step.ids, step.positions, cache, step.batch, tick).clone()
        for wanted in (torch.tensor([2, 0, 2]), torch.empty(0, dtype=torch.int64)):
            given = step.ids, step.positions, cache, step.batch, lambda: None, (), wanted
            assert torch.allclose(model.forward(*given), hidden[wanted], atol=TOLERANCE)
        logits = model.logits(hidden)
        assert logits is not None
        assert logits.dtype == torch.float32
        return logits.clone()  # the next pass overwrites them

    with torch.inference_mode():
        first = compute([Work(0, 0, 101, False), Work(3, 0, 7, False)])
        second = compute([Work(0, 101, 49, False)])
    expected = expected_logits(directory, long)
    assert (torch.cat((first[:101], second)) - expected).abs().max() < TOLERANCE
    assert (first[101:] - expected_logits(directory, short)).abs().max() < TOLERANCE
    assert len(ticks) == 2 * config.num_layers


@pytest.mark.parametrize("most", [1, 256])
@pytest.mark.parametrize(("kernels", "played"), [("native", 1), ("reference", 2)])
def test_passes_from_tapes_are_the_same(tiny_model, monkeypatch, kernels, played, most):
    """Ticks come once where few tokens are played from one tape, else after each of two layers."""
    monkeypatch.setattr(llama, "MOST_TAPED", most)
    directory = tiny_model()
    config, chosen = ModelConfig.from_directory(directory), select(CPU, kernels)
    shard = Shard.of(config, 0, 1)
    with Checkpoint(directory) as checkpoint:
        weights = load_weights(config, shard, checkpoint, torch.bfloat16, CPU, chosen)
    model = Llama(config, shard, weights, chosen, ALONE, CONTEXT)
    cache = Layout.of(config, shard, 16, torch.bfloat16).allocate(64, CPU)
    ticks = []

    def compute(length, wanted=None):
        rows = {0: Row(prompt(length), length, list(range(1, 40)), 0, SamplingParams())}
        step = Batcher(16, CPU).build([Work(0, 0, length, False)], rows)
        chosen.begin_step(step.batch)
        ticks.clear()
        tick = functools.partial(ticks.append, None)
        given = step.ids, step.positions, cache, step.batch, tick, (), wanted
        return model.forward(*given).clone()

    with torch.inference_mode():
        few, many = compute(40), compute(300)
        for _ in range(3):
            assert torch.equal(compute(40), few)
            assert len(ticks) == (played if most > 1 else 2)
            assert torch.equal(compute(300), many)
            assert len(ticks) == 2
            if kernels == "native":  # whose rows are the same bits in any company
                for some in (torch.tensor([39]), torch.tensor([1, 0, 20])):
                    assert torch.equal(compute(40, some), few[some])
                    assert torch.equal(compute(300, some), many[some])
