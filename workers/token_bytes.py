"""What each token of a tokenizer stands for, alone: its bytes.

Three families of tokenizers are told apart by their decoder:

- `bytes`: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): each character of a token is a byte;
- `spaces`: SentencePiece with byte fallback (Llama 2, Mistral, Gemma): `▁` is a space, `<0x41>`
  a byte, and a space in front of the very first token may be dropped;
- `context`: anything else (WordPiece …): a token is decoded beside the one before it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import tokenizers

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a tokenizer's tokens become text. `strip`: what the first token loses in front."""

    kind: Literal["bytes", "spaces", "context"]
    byte_fallback: bool = False
    strip: Literal["nothing", "one space", "all spaces"] = "nothing"


def decoding_of(backend: tokenizers.Tokenizer) -> Decoding:
    """Reads the family off the tokenizer's decoder."""
    if backend.decoder is None:
        return Decoding("context")
    steps = _flatten(json.loads(backend.decoder.__getstate__()))
    names = {step["type"] for step in steps}
    if names == {"ByteLevel"}:
        return Decoding("bytes")
    spaces = any(
        step["type"] == "Metaspace"
        or (step["type"] == "Replace" and step["pattern"] == {"String": _SPACE})
        for step in steps
    )
    if not spaces or not names <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        return Decoding("context")
    strip: Literal["nothing", "one space", "all spaces"] = "nothing"
    for step in steps:
        if step["type"] == "Strip" and step["content"] == " " and step["start"] == 1:
            strip = "one space"
        elif step["type"] == "Metaspace" and step["prepend_scheme"] != "never":
            strip = "all spaces"
    return Decoding("spaces", "ByteFallback" in names, strip)


def token_bytes(backend: tokenizers.Tokenizer, decoding: Decoding, token: int) -> bytes:
    """The bytes of one token, without regard to its neighbours. Empty for an unknown id."""
    name = backend.id_to_token(token)
    if name is None:
        return b""
    if decoding.kind == "bytes":
        table = _byte_alphabet()
        try:
            return bytes([table[character] for character in name])
        except KeyError:  # an added token with characters outside the alphabet: taken literally
            return str(name).encode()
    if decoding.kind == "spaces":
        byte = _BYTE_TOKEN.fullmatch(name) if decoding.byte_fallback else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return str(name).replace(_SPACE, " ").encode()
    text: str = backend.decode([token], skip_special_tokens=False)
    return text.encode()


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 bytes stand for themselves, the others are
    numbered from U+0100 in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table |= {chr(0x100 + position): byte for position, byte in enumerate(others)}
    return table
