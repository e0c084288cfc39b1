"""Whose definition computes a model, and what transformers' configs are refused for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.degree import check_degree
from octavo.workers.read_model import read_model

PHI: dict[str, Any] = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
    "eos_token_id": 7,
}
LLAMA = (
    PHI | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | {"intermediate_size": 96}
)
GEMMA3 = PHI | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 32,
    "num_key_value_heads": 1,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}


@pytest.fixture
def read(tmp_path):
    def read(config, model_impl="auto"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_model(tmp_path, model_impl)

    return read


def test_the_own_definition_comes_first(read):
    assert not read(LLAMA).by_transformers
    assert not read(LLAMA, "octavo").by_transformers
    assert read(LLAMA, "transformers").by_transformers
    assert read(PHI).by_transformers
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read(LLAMA | {"rope_scaling": yarn}).by_transformers
    with pytest.raises(InvalidRequest, match="'yarn', which is not supported"):
        read(LLAMA | {"rope_scaling": yarn}, "octavo")


def test_sizes_are_read_by_transformers(read):
    phi = read(PHI)
    assert (phi.num_layers, phi.num_heads, phi.num_kv_heads, phi.head_dim) == (3, 4, 4, 16)
    assert (phi.context_length, phi.dtype, phi.eos_token_ids) == (512, "bfloat16", (7,))
    assert phi.sliding_window is None
    gemma = read(GEMMA3)
    assert (gemma.num_kv_heads, gemma.head_dim, gemma.sliding_window) == (1, 32, 128)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PHI | {"architectures": ["WhisperForConditionalGeneration"]}, "Whisper.* not supported"),
        (PHI | {"architectures": None, "model_type": "t5"}, "t5.* not supported"),
        (PHI | {"model_type": "nonsense"}, "cannot read its config.json"),
        (PHI | {"quantization_config": {"quant_method": "awq"}}, "quantized .awq."),
        (
            GEMMA3
            | {
                "architectures": ["Gemma2ForCausalLM"],
                "model_type": "gemma2",
                "attn_logit_softcapping": 50.0,
            },
            "caps its attention scores",
        ),
        (
            PHI | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic'",
        ),
        (
            LLAMA
            | {
                "architectures": ["Qwen3NextForCausalLM"],
                "model_type": "qwen3_next",
                "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            },
            "layers of the kind linear_attention",
        ),
        (
            GEMMA3 | {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"},
            "not all alike",
        ),
        (PHI | {"auto_map": {"AutoConfig": "mine.Config"}, "model_type": "mine"}, "config.json"),
    ],
)
def test_what_is_known_from_the_config_is_refused_by_it(read, config, words):
    with pytest.raises(InvalidRequest, match=words) as refusal:
        read(config)
    assert refusal.value.param == "model" and "\n" not in refusal.value.message


def test_only_one_rank_computes_it(read):
    check_degree(read(PHI), 1)
    with pytest.raises(InvalidRequest, match="--tensor-parallel-size to 1, got 2"):
        check_degree(read(PHI), 2)
