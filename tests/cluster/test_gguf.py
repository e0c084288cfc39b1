"""The GGUF reader and the Llama conversion, on small files written here byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from octavo.cluster.checkpoints.gguf import Gguf, InvalidGguf
from octavo.cluster.checkpoints.gguf_llama import convert
from octavo.scheduler.errors import InvalidRequest

ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
Q4_1, Q8_0 = 3, 8
Stored = tuple[tuple[int, ...], int, bytes]  # row-major shape, encoding number, content


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> bytes:
    """A metadata value with its type number in front."""
    if isinstance(value, list):
        items = [typed(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", U32)
        return (
            struct.pack("<I", ARRAY)
            + kind
            + struct.pack("<Q", len(items))
            + b"".join(item[4:] for item in items)
        )
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32, value)
    return struct.pack("<I", STRING) + text(value)


def gguf_file(metadata: dict[str, Any], tensors: dict[str, Stored]) -> bytes:
    """A file of version 3."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + typed(value)
    body = b""
    for name, (shape, kind, content) in tensors.items():
        dims = shape[::-1]
        head += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", kind, len(body))
        body += content + bytes(-len(content) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + body


def f32(array: np.ndarray[Any, Any]) -> Stored:
    return array.shape, 0, array.astype("<f4").tobytes()


def test_metadata_of_every_kind_comes_back() -> None:
    metadata = {"a": 7, "b": 0.5, "c": True, "d": "Ġé", "e": [1, 2, 3], "f": ["x", ""], "g": []}
    assert Gguf(gguf_file(metadata, {})).metadata == metadata


def test_float_tensors_keep_shape_and_place() -> None:
    first, second = np.arange(6.0).reshape(2, 3), np.arange(5.0)
    gguf = Gguf(gguf_file({"name": "two"}, {"first": f32(first), "second": f32(second)}))
    assert np.array_equal(gguf.tensor("first"), first)
    assert np.array_equal(gguf.tensor("second"), second)
    assert gguf.tensor("first").dtype == np.float32


def test_q8_0_is_scale_times_byte() -> None:
    quants = np.arange(-32, 32, dtype=np.int8).reshape(2, 32)
    scales = struct.pack("<e", 0.5), struct.pack("<e", 2.0)
    blocks = scales[0] + quants[0].tobytes() + scales[1] + quants[1].tobytes()
    weights = Gguf(gguf_file({}, {"w": ((2, 32), Q8_0, blocks)})).tensor("w")
    assert np.array_equal(weights, quants * np.array([[0.5], [2.0]]))


def test_q4_1_low_nibbles_come_first() -> None:
    block = struct.pack("<ee", 0.25, -1.0) + bytes(i | (15 - i) << 4 for i in range(16))
    weights = Gguf(gguf_file({}, {"w": ((1, 32), Q4_1, block)})).tensor("w")
    assert np.array_equal(weights[0, :16], np.arange(16) * 0.25 - 1)
    assert np.array_equal(weights[0, 16:], np.arange(15, -1, -1) * 0.25 - 1)


def test_every_truncation_is_refused() -> None:
    whole = gguf_file({"words": ["one", "two"]}, {"w": f32(np.ones((2, 8)))})
    Gguf(whole)
    for length in range(len(whole)):
        with pytest.raises(InvalidGguf):
            Gguf(whole[:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "cannot be in the remaining"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0), "cannot be in the remaining"),
        (gguf_file({"general.alignment": 3}, {}), "power of two"),
        (gguf_file({}, {"w": ((1, 32), 12, bytes(144))}), "encoding number 12"),
        (gguf_file({}, {"w": ((1, 31), Q8_0, bytes(34))}), "does not divide"),
        (gguf_file({}, {"w": ((1, 0), 0, b"")}), "does not divide"),
        (gguf_file({}, {"w": ((1,) * 5, 0, bytes(4))}), "5 dimensions"),
        (gguf_file({}, {"w": ((2**40, 2**40), 0, bytes(4))}), "outside the file"),
        (gguf_file({"a": "x"}, {}).replace(b"x", b"\xff"), "UTF-8"),
    ],
)
def test_nonsense_is_refused_with_a_reason(content: bytes, message: str) -> None:
    with pytest.raises(InvalidGguf, match=message):
        Gguf(content)


HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 32, 48, 2, 262
HEADS, KV_HEADS = 4, 2


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def llama_file(model: LlamaForCausalLM) -> bytes:
    """The model as llama.cpp would store it: its names, and its row order of q and k."""
    inner = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    tensors = {}
    for name, weight in model.model.state_dict().items():
        array = weight.numpy()
        if name.startswith("layers."):
            _, layer, part = name.removesuffix(".weight").split(".", 2)
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
            if heads:
                halves = array.reshape(heads, 2, array.shape[0] // heads // 2, -1)
                array = halves.swapaxes(1, 2).reshape(array.shape)
            tensors[f"blk.{layer}.{inner[part]}.weight"] = f32(array)
        else:
            known = {
                "embed_tokens.weight": "token_embd.weight",
                "norm.weight": "output_norm.weight",
            }
            tensors[known[name]] = f32(array)
    letters = [chr(0x100 + i) for i in range(VOCABULARY - 4)]
    tokens = ["<unk>", "<s>", "</s>", "12", *letters]
    metadata = {
        "llama.vocab_size": VOCABULARY,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (VOCABULARY - 3),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    return gguf_file(metadata, tensors)


def logits(directory: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        result: torch.Tensor = model(torch.arange(5, 25)[None]).logits
    return result


def test_a_llama_model_survives_the_round_trip(
    model: LlamaForCausalLM, llama_file: bytes, tmp_path: Path
) -> None:
    convert(Gguf(llama_file), tmp_path, torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert loaded.config.rms_norm_eps == 1e-5
    expected, found = model.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_padding_with_zero_heads_changes_no_logit(llama_file: bytes, tmp_path: Path) -> None:
    plain, padded = tmp_path / "plain", tmp_path / "padded"
    plain.mkdir()
    padded.mkdir()
    convert(Gguf(llama_file), plain, torch.float32)
    convert(Gguf(llama_file), padded, torch.float32, pad_kv_heads=4)
    config = LlamaConfig.from_pretrained(padded)
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    torch.testing.assert_close(logits(padded), logits(plain), rtol=1e-4, atol=1e-4)


def test_padding_to_fewer_heads_is_refused(llama_file: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at least 2, got 1"):
        convert(Gguf(llama_file), tmp_path, torch.float32, pad_kv_heads=1)
