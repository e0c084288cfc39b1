"""What is refused of an adapter, and how, before any weight is read."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.adapter_files import read_adapters
from octavo.workers.config import WorkerConfig
from octavo.workers.model_config import ModelConfig
from octavo.workers.worker import Worker
from tests.adapters import make_adapter

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def model(tiny_model):
    return tiny_model("llama")


@pytest.fixture
def adapter(tmp_path, model):
    return make_adapter(tmp_path / "adapter", model, targets=("q_proj", "down_proj"))


def read(model, directory, max_rank=16):
    (found,) = read_adapters(
        [f"sql={directory}"], ModelConfig.from_directory(model), max_rank=max_rank
    )
    return found


def refusal(model, directory, **options):
    with pytest.raises(InvalidRequest) as caught:
        read(model, directory, **options)
    assert "'sql'" in caught.value.message and "\n" not in caught.value.message
    return caught.value


def configured(directory, **changes):
    path = directory / "adapter_config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in raw.items() if value != "gone"}))


def rewritten(directory, change):
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_ranks_and_scales_by_module(model, tmp_path):
    directory = make_adapter(
        tmp_path / "a",
        model,
        rank=4,
        alpha=6,
        ranks={"v_proj": 9},
        alpha_pattern={r"model.layers.1.self_attn.[qk]_proj": 2},
    )
    found = read(model, directory)
    assert len(found.updates) == 14
    updates = {
        name.removeprefix("model.layers."): (update.rank, update.scale)
        for name, update in found.updates.items()
    }
    assert updates["0.self_attn.q_proj"] == (4, 1.5)
    assert updates["1.self_attn.q_proj"] == updates["1.self_attn.k_proj"] == (4, 0.5)
    assert updates["1.self_attn.v_proj"] == (9, 6 / 9)
    configured(directory, use_rslora=True)
    assert read(model, directory).updates["model.layers.0.self_attn.v_proj"].scale == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "of the type 'IA3'"),
        ({"use_dora": True}, "use_dora to True"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save to \['lm_head'\]"),
        ({"bias": "all"}, "biases .'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4.*conversion"),
        ({"r": 0}, "at least 1"),
        ({"r": "gone"}, "lacks the key 'r'"),
        ({"r": "many"}, "cannot be understood"),
        ({"lora_alpha": float("nan")}, "must be finite"),
        ({"rank_pattern": {"(": 2}}, "cannot be understood"),
        ({"r": 5}, r"lora_A of .*down_proj has the shape \[4, 128\].* imply \[5, 128\]"),
    ],
)
def test_settings_that_cannot_be_served(model, adapter, changes, words):
    configured(adapter, **changes)
    error = refusal(model, adapter)
    assert error.param == "lora_modules"
    assert re.search(words, error.message), error.message


def test_a_rank_above_the_bound_names_the_flag(model, adapter):
    error = refusal(model, adapter, max_rank=3)
    assert error.param == "max_lora_rank"
    assert "rank 4" in error.message and "--max-lora-rank 3" in error.message


def test_modules_that_cannot_be_served_are_named(model, adapter):
    embedding = "base_model.model.model.embed_tokens.lora_embedding_A"
    rewritten(adapter, lambda tensors: tensors.update({embedding: torch.zeros(4, 512)}))
    message = refusal(model, adapter).message
    assert embedding in message and "self_attn.q_proj" in message


def test_a_model_of_another_shape(model, adapter):
    rewritten(adapter, lambda tensors: tensors.update({f"{Q}.lora_B.weight": torch.zeros(64, 4)}))
    message = refusal(model, adapter).message
    assert "lora_B of model.layers.0.self_attn.q_proj has the shape [64, 4]" in message
    assert "imply [128, 4]" in message


def test_a_layer_that_the_model_does_not_have(model, adapter):
    far = Q.replace("layers.0", "layers.7")
    rewritten(adapter, lambda tensors: tensors.update({f"{far}.lora_A.weight": torch.zeros(4, 64)}))
    assert "has 2 layers" in refusal(model, adapter).message


def test_half_an_update(model, adapter):
    rewritten(adapter, lambda tensors: tensors.pop(f"{Q}.lora_A.weight"))
    assert "lacks lora_A of model.layers.0.self_attn.q_proj" in refusal(model, adapter).message


def test_numbers_that_are_no_weights(model, adapter):
    name = f"{Q}.lora_A.weight"
    rewritten(adapter, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    assert "data type I8" in refusal(model, adapter).message


def test_files_that_are_not_there_or_broken(model, adapter, tmp_path):
    assert "adapter_config.json" in refusal(model, tmp_path / "nowhere").message
    weights = adapter / "adapter_model.safetensors"
    save_file({}, weights)
    assert "holds no weights" in refusal(model, adapter).message
    weights.write_bytes(b"\x80\x02}q\x00.")
    assert "cannot read" in refusal(model, adapter).message
    weights.rename(adapter / "adapter_model.bin")
    assert "only safetensors" in refusal(model, adapter).message
    (adapter / "adapter_config.json").write_text("{")
    assert "cannot read" in refusal(model, adapter).message


def test_a_worker_refuses_before_it_reads_weights(model, tmp_path):
    with pytest.raises(InvalidRequest, match="adapter_config.json"):
        Worker(WorkerConfig(str(model), lora_modules=[f"sql={tmp_path / 'nowhere'}"]))
