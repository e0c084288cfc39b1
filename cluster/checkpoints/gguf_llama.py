"""Turns a Llama-family GGUF file with a byte-level BPE tokenizer into a Hugging Face directory.

Knows the two naming schemes and how they differ in layout; fetching and caching are elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.cluster.checkpoints.gguf import Floats, Gguf, InvalidGguf
from octavo.scheduler.errors import InvalidRequest

_CONTROL = 3  # the token type that GGUF gives to special tokens
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of the file, and `padding` all-zero KV groups to be added behind them.

    A zero group's output is zero through its zero output weights: logits stay, and the head counts
    become divisible by more tensor-parallel degrees.
    """

    query: int
    kv: int
    dim: int
    padding: int = 0

    @property
    def group(self) -> int:
        return self.query // self.kv

    def added_rows(self, part: str) -> int:
        """Rows (for `attn_output`: columns) that the padding adds to a projection."""
        if part in ("attn_q", "attn_output"):
            return self.padding * self.group * self.dim
        return self.padding * self.dim if part in ("attn_k", "attn_v") else 0


def convert(gguf: Gguf, out: Path, dtype: torch.dtype, pad_kv_heads: int | None = None) -> None:
    """Writes config, weights, tokenizer and chat template into the directory `out`.

    Raises `InvalidGguf`, and `InvalidRequest` where `pad_kv_heads` is below the file's own number.
    """
    heads = _heads(gguf, pad_kv_heads)
    weights = {name: torch.from_numpy(w).to(dtype) for name, w in _weights(gguf, heads)}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokens = gguf.strings("tokenizer.ggml.tokens")
    special = {
        name: gguf.integer(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    ids = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad")}
    config = _config(gguf, heads, dtype, tied="lm_head.weight" not in weights)
    _write_json(out / "config.json", config | ids)
    _write_json(out / "generation_config.json", ids)
    _tokenizer(gguf, tokens).save(str(out / "tokenizer.json"))
    template = gguf.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str):
        raise InvalidGguf("the file has no chat template")
    (out / "chat_template.jinja").write_text(template)
    tokenizer_config = {f"{name}_token": tokens[index] for name, index in special.items()}
    _write_json(
        out / "tokenizer_config.json",
        tokenizer_config
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": gguf.integer("llama.context_length"),
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
        },
    )


def _heads(gguf: Gguf, pad_kv_heads: int | None) -> Heads:
    query = gguf.integer("llama.attention.head_count")
    kv = gguf.integer("llama.attention.head_count_kv")
    hidden = gguf.integer("llama.embedding_length")
    if query < 1 or kv < 1 or query % kv or hidden % query:
        raise InvalidGguf(f"{query} heads on {kv} KV heads do not divide a width of {hidden}")
    if pad_kv_heads is not None and pad_kv_heads < kv:
        raise InvalidRequest(
            "pad_kv_heads", f"pad_kv_heads must be at least {kv}, got {pad_kv_heads}"
        )
    return Heads(query, kv, hidden // query, padding=(pad_kv_heads or kv) - kv)


def _weights(gguf: Gguf, heads: Heads) -> Iterator[tuple[str, Floats]]:
    for name in gguf.tensors:
        weight = gguf.tensor(name)
        match name.split("."):
            case [outer, "weight"] if outer in _OUTER:
                yield f"{_OUTER[outer]}.weight", weight
            case ["blk", layer, part, "weight"] if part in _INNER:
                if part in ("attn_q", "attn_k"):
                    weight = _halves(weight, heads.query if part == "attn_q" else heads.kv)
                added = heads.added_rows(part)
                pad = ((0, 0), (0, added)) if part == "attn_output" else ((0, added), (0, 0))
                yield (
                    f"model.layers.{layer}.{_INNER[part]}.weight",
                    np.pad(weight, pad) if added else weight,
                )
            case _:
                raise InvalidGguf(f"tensor {name} belongs to no Llama model")


def _halves(weight: Floats, heads: int) -> Floats:
    """Undoes llama.cpp's row order: it interleaves the two halves that rotary embedding pairs."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _config(gguf: Gguf, heads: Heads, dtype: torch.dtype, *, tied: bool) -> dict[str, object]:
    kv = heads.kv + heads.padding
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": gguf.integer("llama.vocab_size"),
        "hidden_size": gguf.integer("llama.embedding_length"),
        "intermediate_size": gguf.integer("llama.feed_forward_length"),
        "num_hidden_layers": gguf.integer("llama.block_count"),
        "num_attention_heads": kv * heads.group,
        "num_key_value_heads": kv,
        "head_dim": heads.dim,
        "hidden_act": "silu",
        "max_position_embeddings": gguf.integer("llama.context_length"),
        "rms_norm_eps": _decimal(gguf, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _decimal(gguf, "llama.rope.freq_base"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _decimal(gguf: Gguf, key: str) -> float:
    """The shortest decimal number for a value that the file keeps in float32: 1e-05, where a plain
    conversion to double would give 9.999999747378752e-06."""
    value = gguf.metadata.get(key)
    if not isinstance(value, float):
        raise InvalidGguf(f"metadata {key} must be a number, got {value!r}")
    return float(str(np.float32(value)))


def _tokenizer(gguf: Gguf, tokens: list[str]) -> Tokenizer:
    if gguf.metadata.get("tokenizer.ggml.pre") != "smollm":
        raise InvalidGguf("only the pre-tokenizer `smollm` is known")
    merges = [merge.split(" ") for merge in gguf.strings("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise InvalidGguf("a merge of the tokenizer does not name two tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in merges]))
    # The rule that llama.cpp calls smollm: digits one by one, then GPT-2's byte level.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise InvalidGguf("the tokenizer's token types do not match its tokens")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    return tokenizer


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
