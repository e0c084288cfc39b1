"""config.json in its old and new spellings, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig, resolve_dtype, served_length
from octavo.workers.model_config import ModelConfig, NoOwnModel, RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
}


@pytest.fixture
def read(tmp_path):
    def read(changes, generation=None):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return ModelConfig.from_directory(tmp_path)

    return read


def test_defaults_of_an_old_llama(read):
    config = read({})
    assert (config.num_kv_heads, config.head_dim, config.num_layers) == (8, 8, 3)
    assert (config.rope_theta, config.rope_scaling, config.rms_norm_eps) == (10000.0, None, 1e-6)
    assert not config.tie_word_embeddings
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)
    assert (config.dtype, config.eos_token_ids, config.sliding_window) == ("float32", (2,), None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}},
        ),
        ({"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    ],
)
def test_old_and_new_spellings_mean_the_same(read, old, new):
    assert read(old) == read(new)


def test_rope_scalings(read):
    linear = read({"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert linear.rope_scaling == RopeScaling("linear", 4.0)
    assert linear.context_length == 4 * 2048
    llama3 = read(
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        }
    )
    assert llama3.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 512)
    assert llama3.context_length == 2048


def test_families_differ_in_biases_norms_and_head_size(read):
    qwen2 = read({"architectures": ["Qwen2ForCausalLM"]})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read({"architectures": ["Qwen3ForCausalLM"]})
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    biased = read({"attention_bias": True, "mlp_bias": True})
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)


def test_end_tokens_come_from_both_files(read):
    config = read({"eos_token_id": 2}, {"eos_token_id": [5, 2, 9]})
    assert config.eos_token_ids == (5, 2, 9)
    assert read({"eos_token_id": None}, {}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["FalconForCausalLM"]}, ["FalconForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": None, "model_type": "gemma3"}, ["Gemma3ForCausalLM", "supported"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["'yarn'", "llama3"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["factor"]),
        ({"hidden_act": "gelu"}, ["'gelu'"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["awq", "bfloat16"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["float8_e4m3fn"]),
        ({"dtype": "float64"}, ["float64"]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(read, changes, words):
    with pytest.raises(InvalidRequest) as error:
        read(changes)
    assert error.value.param == "model"
    assert all(word in error.value.message for word in words)


def test_a_directory_that_is_no_model(tmp_path):
    with pytest.raises(InvalidRequest, match=r"no config\.json"):
        ModelConfig.from_directory(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        ModelConfig.from_directory(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(InvalidRequest, match="lacks the key 'num_attention_heads'"):
        ModelConfig.from_directory(tmp_path)


def test_a_length_above_the_model_is_refused_with_both_numbers(read):
    model = read({})
    assert served_length(model, None) == 2048
    assert served_length(model, 100) == 100
    with pytest.raises(InvalidRequest, match=r"max_model_len 2049 is more than the 2048 tokens"):
        served_length(model, 2049)


def test_a_sliding_window_is_that_of_all_layers_or_not_ours(read):
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert read(mistral | {"sliding_window": None}).sliding_window is None
    assert read(mistral | {"sliding_window": 1024}).sliding_window == 1024
    assert read(mistral).sliding_window == 4096
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
    assert read(qwen | {"use_sliding_window": False}).sliding_window is None
    with pytest.raises(NoOwnModel, match="sliding window in some layers"):
        read(qwen | {"use_sliding_window": True})


@pytest.mark.parametrize(
    ("asked", "checkpoint", "device", "got"),
    [
        ("auto", "bfloat16", "cpu", "bfloat16"),
        ("auto", "float16", "cpu", "float32"),
        ("auto", "float16", "cuda", "float16"),
        ("float32", "bfloat16", "cpu", "float32"),
        ("float16", "float32", "cuda", "float16"),
    ],
)
def test_data_types(asked, checkpoint, device, got):
    assert resolve_dtype(asked, checkpoint, device) == got


def test_float16_is_refused_on_the_cpu():
    with pytest.raises(InvalidRequest, match="bfloat16 or float32"):
        resolve_dtype("float16", "float32", "cpu")


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "int8"},
        {"device": "tpu"},
        {"block_size": 24},
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"max_model_len": 0},
        {"num_blocks_override": 1},
        {"gpu_memory_utilization": 1.5},
        {"load_format": "pickle"},
    ],
)
def test_wrong_worker_settings_name_the_flag_and_the_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidRequest, match=str(value)) as error:
        WorkerConfig("model", **wrong)
    assert error.value.param == name
