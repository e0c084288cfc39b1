"""Tiny random models of many architectures, as transformers makes and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY, CONTEXT, WINDOW = 256, 128, 16

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 96,
}
_GROUPED = _SIZES | {"num_key_value_heads": 4}
_EXPERTS = _GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

_HEADS_OF_16 = _GROUPED | {"head_dim": 16}
_WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_OLD = {"n_embd": 64, "n_layer": 2, "n_head": 8}
_ROUTED = _HEADS_OF_16 | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}

SERVED: dict[str, dict[str, Any]] = {
    "llama": _GROUPED | {"rope_parameters": _YARN},
    "mistral": _HEADS_OF_16 | {"sliding_window": WINDOW},
    "qwen2": _GROUPED
    | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": _HEADS_OF_16,
    "qwen3_moe": _EXPERTS | {"num_experts": 4, "head_dim": 16},
    "gemma": _HEADS_OF_16,
    "gemma3_text": _HEADS_OF_16 | _WINDOWED | {"query_pre_attn_scalar": 16},
    "phi": _GROUPED,
    "opt": {key: size for key, size in _SIZES.items() if key != "intermediate_size"}
    | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2},
    "gpt2": _OLD,
    "gpt_neox": _SIZES,
    "granite": _GROUPED | {"attention_multiplier": 0.2, "logits_scaling": 3.0},
}

MORE: dict[str, dict[str, Any]] = {  # tried by hand
    **dict.fromkeys(("apertus", "arcee", "bitnet", "cohere", "nanochat", "nemotron"), _GROUPED),
    **dict.fromkeys(("olmo", "olmo2", "smollm3", "stablelm", "starcoder2"), _GROUPED),
    **dict.fromkeys(("afmoe", "ernie4_5", "glm", "glm4", "hunyuan_v1_dense"), _HEADS_OF_16),
    **dict.fromkeys(("ministral3", "phi3", "seed_oss"), _HEADS_OF_16),
    **dict.fromkeys(("cohere2", "olmo3"), _GROUPED | _WINDOWED),
    **dict.fromkeys(("biogpt", "persimmon"), _SIZES),
    **dict.fromkeys(("codegen", "gptj"), _OLD | {"rotary_dim": 8}),
    **dict.fromkeys(("granitemoe", "mixtral", "phimoe"), _EXPERTS | {"num_local_experts": 4}),
    "dots1": _ROUTED | {"n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "exaone4": _HEADS_OF_16 | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "glm4_moe": _ROUTED,
    "gpt_bigcode": _OLD,
    "hunyuan_v1_moe": _HEADS_OF_16 | {"num_experts": 4, "moe_topk": 2},
    "ministral": _HEADS_OF_16 | {"sliding_window": WINDOW},
    "olmoe": _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 48},
}


def make(out: Path, model_type: str, sizes: dict[str, Any]) -> Path:
    """Writes a checkpoint and returns its directory. Biases and norms are random too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    common = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(model_type, **(common | sizes))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(out)
    return out
