"""Models that transformers defines: greedy tokens beside transformers' own, and refusals."""

from __future__ import annotations

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig
from octavo.workers.models.generic import Generic
from octavo.workers.worker import Worker
from tests.workers.breadth import SERVED, VOCABULARY, make
from tests.workers.plans import BLOCK_SIZE, NUM_BLOCKS, generation_plans, run_plans, tokens_by_row

NEW_TOKENS = 10
TIE = 1e-4  # between logits that either rounding may put first


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


PROMPTS = random_prompts(5, 16, 41)


def open_worker(directory, **settings):
    settings = {"block_size": BLOCK_SIZE, "device": "cpu", "model_impl": "transformers"} | settings
    worker = Worker(WorkerConfig(str(directory), **settings))
    worker.load()
    worker.allocate(NUM_BLOCKS)
    return worker


def generate(worker, chunk):
    plans = generation_plans(PROMPTS, NEW_TOKENS, chunk=chunk)
    plans[0] = msgspec.structs.replace(plans[0], reset=True)
    answers = tokens_by_row(plans, run_plans(worker, plans))
    return [answers[row] for row in range(len(PROMPTS))]


def verify_greedy(directory, answers):
    """Each token of the answers is what transformers thinks likeliest there."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert len(answer) == NEW_TOKENS
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer])).logits[0]
        at = logits[len(prompt) - 1 : -1]
        chosen = at.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (at.max(dim=1).values - chosen).max() < TIE


def verify_served(folder, model_type, sizes):
    directory = make(folder, model_type, sizes)
    worker = open_worker(directory)
    assert isinstance(worker._model, Generic)
    answers = generate(worker, chunk=9)
    assert len(set(map(tuple, answers))) == len(answers)
    verify_greedy(directory, answers)
    assert generate(worker, chunk=1000) == answers


@pytest.mark.parametrize("model_type", SERVED)
def test_greedy_tokens_are_those_of_transformers(tmp_path, model_type):
    verify_served(tmp_path, model_type, SERVED[model_type])


def test_auto_takes_the_own_definition_where_there_is_one(tmp_path):
    """And that serves a window beside the generic one."""
    directory = make(tmp_path, "mistral", SERVED["mistral"])
    worker = open_worker(directory, model_impl="auto")
    assert not isinstance(worker._model, Generic)
    verify_greedy(directory, generate(worker, chunk=9))


def test_other_kernels_serve_it_too(tmp_path):
    directory = make(tmp_path, "gemma3_text", SERVED["gemma3_text"])
    worker = open_worker(directory, kernels="torch", model_impl="auto")
    verify_greedy(directory, generate(worker, chunk=9))


def test_bfloat16_passes_the_trial(tmp_path):
    directory = make(tmp_path, "qwen3_moe", SERVED["qwen3_moe"])
    answers = generate(open_worker(directory, dtype="bfloat16"), chunk=9)
    assert [len(answer) for answer in answers] == [NEW_TOKENS] * len(PROMPTS)


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
REFUSED = {
    "falcon": (SIZES | {"new_decoder_architecture": False}, "attention"),
    "bloom": ({"hidden_size": 64, "n_layer": 2, "n_head": 8}, "bloom|Bloom"),
    "gpt_oss": (
        SIZES
        | {
            "head_dim": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        "attention sinks",
    ),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_would_be_wrong_is_refused_before_weights_are_read(tmp_path, monkeypatch, model_type):
    sizes, words = REFUSED[model_type]
    directory = make(tmp_path, model_type, sizes)

    def read(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr("octavo.workers.models.opening.Opening._read", read)
    with pytest.raises(InvalidRequest, match=words) as refusal:
        open_worker(directory)
    assert "\n" not in refusal.value.message


def test_a_model_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    """Were the kernels to forget the scale, for one."""
    from octavo.kernels.reference import ReferenceKernels

    right = ReferenceKernels.attention

    def wrong(self, query, cache, batch, scale, out, window=None):
        right(self, query, cache, batch, scale * 1.05, out, window)

    monkeypatch.setattr(ReferenceKernels, "attention", wrong)
    directory = make(tmp_path, "phi", SERVED["phi"])
    with pytest.raises(InvalidRequest, match=r"something else over a paged cache .* by \d"):
        open_worker(directory, kernels="reference")


def test_tensors_that_are_missing_or_not_explained_are_refused(tmp_path):
    directory = make(tmp_path, "gpt_neox", SERVED["gpt_neox"])
    file = directory / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"gpt_neox.more": torch.zeros(1)}, file, metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match=r"does not explain: gpt_neox\.more"):
        open_worker(directory)
    del weights["gpt_neox.final_layer_norm.bias"]
    buffer = {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.zeros(1)}
    save_file(weights | buffer, file, metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match=r"lacks gpt_neox\.final_layer_norm\.bias, which"):
        open_worker(directory)


def test_what_only_the_own_definition_can_is_refused(tmp_path):
    directory = make(tmp_path, "phi", SERVED["phi"])
    with pytest.raises(InvalidRequest, match="leave out --quantization"):
        open_worker(directory, quantization="int8")
    with pytest.raises(InvalidRequest, match="a PhiForCausalLM.*leave out --lora-modules"):
        Worker(WorkerConfig(str(directory), device="cpu", lora_modules=["one=/adapters/one"]))
    with pytest.raises(InvalidRequest, match="supported are LlamaForCausalLM"):
        open_worker(directory, model_impl="octavo")
