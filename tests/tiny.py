"""Small random checkpoints with a real tokenizer, made in about a second and never downloaded.

8 query heads and 4 KV heads divide by 1, 2, 4 and 8; `kv_heads=2` makes 4 ranks share KV heads. All
biases and norms are random too: a model that ignored them would give other logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
CONTEXT = 512
LONG_CONTEXT = 4096
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = [
    "An octavo is a sheet folded into eight leaves, and a page is one side of a leaf.",
    "Printers fold a sheet three times; readers cut the folds and turn the pages.",
] * 4

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# model type, and what differs from its defaults
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-long": ("llama", {"max_position_embeddings": LONG_CONTEXT}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3_SCALING}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


def make_tiny(
    out: Path,
    family: str = "llama",
    *,
    kv_heads: int = 4,
    tie: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
) -> Path:
    """Writes a checkpoint of two layers, width 64, and returns its directory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = FAMILIES[family]
    config = AutoConfig.for_model(
        model_type,
        vocab_size=VOCABULARY,
        hidden_size=128 if model_type == "qwen2" else 64,  # qwen2's heads always share this out
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tie,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.2,  # the usual 0.02 leaves the logits flat: rounding picks the winner
        **({} if model_type == "qwen2" else {"head_dim": 16}),
        **{"max_position_embeddings": CONTEXT, **changes},
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    out.mkdir(parents=True, exist_ok=True)
    model.to(dtype).save_pretrained(out, max_shard_size=max_shard_size)
    save_tokenizer(out)
    return out


def save_tokenizer(out: Path) -> None:
    """A byte-level BPE tokenizer with a chat template. Every id of the vocabulary has a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START, STOP],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"<|extra_{i}|>", normalized=False) for i in range(missing)])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": START,
        "eos_token": STOP,
        "pad_token": END,
        "unk_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
