"""Checkpoints by slices: what each rank reads, and what is wrong with a broken one."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.kernels.reference import ReferenceKernels
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.loader import Checkpoint
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.weights import load_weights
from octavo.workers.parallel import Shard
from tests.tiny import make_tiny

CPU = torch.device("cpu")
KERNELS = ReferenceKernels()  # which keep weights as they are
REPLICATED = ("norm.weight", "o_proj.bias", "down_proj.bias")


def load(directory, rank=0, size=1, dtype=torch.float32):
    model = ModelConfig.from_directory(directory)
    with Checkpoint(directory) as checkpoint:
        weights = load_weights(model, Shard.of(model, rank, size), checkpoint, dtype, CPU, KERNELS)
        return weights, checkpoint.bytes_read


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("family", ["llama-bias", "qwen2", "qwen3"])
def test_each_rank_reads_its_share_and_no_more(tiny_model, family, tie):
    directory = tiny_model(family, tie=tie)
    sizes = {name: t.nbytes for name, t in load_file(directory / "model.safetensors").items()}
    shared = sum(size for name, size in sizes.items() if name.endswith(REPLICATED))
    divided = sum(sizes.values()) - shared
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            assert load(directory, rank, ranks)[1] == divided // ranks + shared


def test_fused_tensors_are_the_slices_of_this_rank(tiny_model):
    directory = tiny_model("llama", kv_heads=2, tie=False)
    raw = load_file(directory / "model.safetensors")
    weights, _ = load(directory, rank=3, size=4)
    attention = "model.layers.1.self_attn."
    q, k, v = (raw[f"{attention}{name}_proj.weight"] for name in "qkv")
    layer = weights.layers[1]
    # 8 heads of 16 over 4 ranks; of 2 KV heads, ranks 2 and 3 hold the second
    assert torch.equal(layer.qkv.weight.plain, torch.cat((q[96:128], k[16:32], v[16:32])))
    assert torch.equal(layer.output.weight.plain, raw[attention + "o_proj.weight"][:, 96:128])
    gate, up = (raw[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    assert torch.equal(layer.gate_up.weight.plain, torch.cat((gate[96:], up[96:])))
    assert torch.equal(layer.down.weight.plain, raw["model.layers.1.mlp.down_proj.weight"][:, 96:])
    assert torch.equal(weights.head.plain, raw["lm_head.weight"][384:])
    assert torch.equal(weights.embedding, raw["model.embed_tokens.weight"][384:])


def test_only_one_rank_adds_the_bias_of_a_sum(tiny_model):
    directory = tiny_model("llama-bias")
    biases = [load(directory, rank, 2)[0].layers[0].output.bias for rank in range(2)]
    assert biases[0] is not None
    assert biases[1] is None


def test_tied_embeddings_are_one_tensor(tiny_model):
    weights, _ = load(tiny_model("llama", tie=True))
    assert weights.head.plain is weights.embedding
    weights, _ = load(tiny_model("llama", tie=False))
    assert not torch.equal(weights.head.plain, weights.embedding)


def test_several_files_and_another_dtype(tmp_path, tiny_model):
    whole, _ = load(tiny_model("llama"), dtype=torch.bfloat16)
    parts = make_tiny(tmp_path / "parts", "llama", max_shard_size="100KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    loaded, _ = load(parts, dtype=torch.bfloat16)
    assert loaded.embedding.dtype == torch.bfloat16
    assert torch.equal(loaded.layers[1].qkv.weight.plain, whole.layers[1].qkv.weight.plain)


@pytest.fixture
def broken(tmp_path, tiny_model):
    """A copy of a good checkpoint whose tensors `change` has altered."""

    def make(change):
        source = tiny_model("llama")
        tensors = load_file(source / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((source / "config.json").read_text())
        return tmp_path

    return make


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(NAME), f"lacks the tensor {NAME}"),
        (
            lambda t: t.update({NAME: torch.zeros(64, 64)}),
            r"up_proj.weight .* shape \[64, 64\], but config.json implies \[128, 64\]",
        ),
        (
            lambda t: t.update({"model.layers.2.extra": torch.zeros(1)}),
            "does not explain: model.layers.2.extra",
        ),
    ],
)
def test_a_wrong_tensor_is_named(broken, change, words):
    with pytest.raises(InvalidRequest, match=words) as error:
        load(broken(change))
    assert error.value.param == "model"


def test_what_old_checkpoints_carry_along_is_passed_over(broken):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    load(broken(change))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"neither model\.safetensors nor"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    with pytest.raises(InvalidRequest, match=r"not there: two\.safetensors"):
        Checkpoint(tmp_path)
    (tmp_path / "two.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(InvalidRequest, match=r"cannot read .*two\.safetensors"):
        Checkpoint(tmp_path)
