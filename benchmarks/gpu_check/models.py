"""Random models, written here: a bare machine has no hub to fetch one from.

Weights are wide enough that logits are not flat: else rounding picks the likeliest token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}
TINY = SMALL | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
# As Llama 3.2 1B is made, with fewer tokens in the vocabulary.
ONE_BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_model(
    folder: Path, sizes: dict[str, int], family: str = "llama", dtype: str = "bfloat16"
) -> Path:
    """The model's directory in `folder`, made unless it is there."""
    name = f"{family}-{sizes['hidden_size']}-{sizes['num_hidden_layers']}-{dtype}"
    out = folder / name
    if (out / "config.json").exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    save_file(_tensors(sizes, family, getattr(torch, dtype), generator), out / "model.safetensors")
    config: dict[str, Any] = {
        **sizes,
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "torch_dtype": dtype,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config))  # last: it says that the rest is there
    return out


def _tensors(
    sizes: dict[str, int], family: str, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, Tensor]:
    hidden, inner, dim = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    heads, kv_heads = sizes["num_attention_heads"] * dim, sizes["num_key_value_heads"] * dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        values = torch.randn(rows, columns, generator=generator)
        return values.mul_(gain * columns**-0.5).to(dtype)

    def norm(size: int) -> Tensor:
        return (1 + 0.1 * torch.randn(size, generator=generator)).to(dtype)

    found = {"model.embed_tokens.weight": matrix(sizes["vocab_size"], hidden, 2.0)}
    for layer in range(sizes["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        found |= {
            prefix + "input_layernorm.weight": norm(hidden),
            prefix + "post_attention_layernorm.weight": norm(hidden),
            attention + "q_proj.weight": matrix(heads, hidden),
            attention + "k_proj.weight": matrix(kv_heads, hidden),
            attention + "v_proj.weight": matrix(kv_heads, hidden),
            attention + "o_proj.weight": matrix(hidden, heads),
            mlp + "gate_proj.weight": matrix(inner, hidden),
            mlp + "up_proj.weight": matrix(inner, hidden),
            mlp + "down_proj.weight": matrix(hidden, inner),
        }
        if family == "qwen3":
            found |= {
                attention + "q_norm.weight": norm(dim),
                attention + "k_norm.weight": norm(dim),
            }
    return found | {"model.norm.weight": norm(hidden)}
