"""A model's tokens as its grammars see them.

llguidance masks by the bytes that each token adds to the text. They are given to it here, and are
those that the front decodes by (`token_bytes`), so that what a grammar lets through is what a
client reads. Special tokens are no text, and stand in no answer but at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llguidance
import tokenizers

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.token_bytes import decoding_of, token_bytes


class Vocabulary:
    """The first `size` tokens of a tokenizer, which is as many as the model has logits, and behind
    them, with the id `end`, one that no model has: a mask allows it where the answer may end.

    Raises `InvalidRequest` for a tokenizer whose tokens have no bytes of their own.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, size: int, special: Iterable[int] = ()
    ) -> None:
        decoding = decoding_of(backend)
        if decoding.kind == "context":
            raise InvalidRequest(
                "grammar",
                "structured output is not possible with this model: what its tokens stand for "
                "depends on their neighbours (its tokenizer is neither byte-level nor with byte "
                "fallback)",
            )
        added = backend.get_added_tokens_decoder()
        marked = {id_ for id_, token in added.items() if token.special} | set(special)
        self.end = size
        self.tokens = [token_bytes(backend, decoding, id_) for id_ in range(size)] + [b""]
        self.words = -(-len(self.tokens) // 32)  # of 32 bits, in a mask
        wrapper = llguidance.TokenizerWrapper(
            _Canonical(backend, self.tokens, sorted(id_ for id_ in marked if id_ < size))
        )
        self.tokenizer = llguidance.LLTokenizer(wrapper)

    @classmethod
    def of_directory(cls, folder: str, size: int) -> Vocabulary:
        """Reads a model's directory, never the network."""
        path = Path(folder)
        settings = _read_json(path / "tokenizer_config.json")
        if (path / "tokenizer.json").is_file():
            backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        else:
            import transformers  # slow to import

            loaded = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            backend = loaded.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, size, _special(settings, backend))


class _Canonical:
    """The form in which llguidance takes a tokenizer. It asks how a text that the grammar leaves no
    choice about is usually cut into tokens, so that the model sees what it was trained on."""

    def __init__(
        self, backend: tokenizers.Tokenizer, tokens: list[bytes], special: list[int]
    ) -> None:
        self.eos_token_id = len(tokens) - 1
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = special
        self._backend = backend
        self._ids = {token: id_ for id_, token in enumerate(tokens)}
        for id_ in special:
            self._ids.pop(tokens[id_], None)
        self._longest = max(map(len, tokens))

    def __call__(self, raw: bytes) -> list[int]:
        """`raw` is UTF-8. Where the tokenizer puts something in front, or leaves something out, the
        longest token that fits is taken, again and again."""
        ids: list[int] = self._backend.encode(raw.decode(), add_special_tokens=False).ids
        last = len(self.tokens) - 1
        if all(id_ < last for id_ in ids) and b"".join(self.tokens[id_] for id_ in ids) == raw:
            return ids
        ids, at = [], 0
        while at < len(raw):
            for end in range(min(len(raw), at + self._longest), at, -1):
                if (found := self._ids.get(raw[at:end])) is not None:
                    ids.append(found)
                    at = end
                    break
            else:
                return ids  # no token for this byte: the rest is left to the caller
        return ids


def _special(settings: dict[str, Any], backend: tokenizers.Tokenizer) -> set[int]:
    """Ids that a tokenizer's settings call special, whatever tokenizer.json says of them."""
    ids = {
        int(id_)
        for id_, token in settings.get("added_tokens_decoder", {}).items()
        if token.get("special")
    }
    named = [value for name, value in settings.items() if name.endswith("_token")]
    named += settings.get("additional_special_tokens") or []
    for token in named:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (id_ := backend.token_to_id(text)) is not None:
            ids.add(id_)
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
