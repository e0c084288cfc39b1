"""Random LoRA adapters as PEFT saves them, and checkpoints that they are merged into by hand."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_adapter(
    out: Path,
    model: Path,
    *,
    targets: Sequence[str] = ALL,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    ranks: dict[str, int] | None = None,
    **settings: Any,
) -> Path:
    """An adapter of `model` that changes all layers' `targets` enough to change its answers. Those
    named in `ranks` have another rank; `settings` go into PEFT's file."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        last = module.rpartition(".")[2]
        if last not in targets:
            continue
        outputs, inputs = weight.shape
        own = (ranks or {}).get(last, rank)
        for side, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            values = 0.2 * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = values
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "rank_pattern": ranks or {},
        "alpha_pattern": {},
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "adapter_config.json").write_text(json.dumps(config | settings))
    save_file(tensors, out / "adapter_model.safetensors")
    return out


def merge(out: Path, model: Path, adapter: Path) -> Path:
    """The checkpoint with W + scale * B A in the place of W, in float32."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights = load_file(model / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.*)\.lora_A\.weight", name)
        if found is None:
            continue
        rank, alpha = a.shape[0], config["lora_alpha"]
        for key, value in config["alpha_pattern"].items():
            if found[1].endswith(key):
                alpha = value
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        b = tensors[name.replace("lora_A", "lora_B")]
        weights[f"{found[1]}.weight"] += scale * (b @ a)
    shutil.copytree(model, out)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out


def greedy(model: Path, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """Continuations by transformers, each prompt alone, whatever ends a text."""
    import transformers

    library: Any = transformers  # which has no types
    loaded = library.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    loaded.generation_config = library.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    answers = []
    for prompt in prompts:
        mask = torch.ones(1, len(prompt), dtype=torch.int64)
        found = loaded.generate(torch.tensor([list(prompt)]), attention_mask=mask)
        answers.append(found[0, len(prompt) :].tolist())
    return answers
