"""Text to token ids and back, for one model directory.

Knows tokenizers and chat templates; knows nothing of requests, engines or HTTP. Safe to use from
several threads: after loading nothing changes but a cache of token bytes.

`decode` and `Detokenizer` are one code path, so a stream and a whole answer cannot differ. Where
the bytes form valid UTF-8 both equal the tokenizer library's own `decode`; where they do not, each
maximal broken piece becomes one U+FFFD (the WHATWG rule) and the good characters beside it stay,
whereas the library's byte fallback would spoil the whole run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from octavo.cluster.text.detokenizer import Detokenizer
from octavo.cluster.text.stops import StopChecker, StopStrings
from octavo.cluster.text.templates import render_chat
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.token_bytes import Decoding, decoding_of, token_bytes
from octavo.workers.vocabulary import Vocabulary

__all__ = ["Detokenizer", "StopChecker", "StopStrings", "Tokenizer"]

_NORMALIZERS_SHRINK = 4  # characters that a normalizer may merge into one


class Tokenizer:
    """`vocab_size` is the model's where its config says so (ids below it are safe to embed), else
    the tokenizer's. `eos_ids` are all ids that end an answer."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        chat_template: str | None = None,
        tool_template: str | None = None,
        special_tokens: dict[str, str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._decoding = decoding_of(backend)
        self._special_ids = frozenset(
            id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._bytes: dict[int, bytes] = {}
        self._template = chat_template
        self._tool_template = tool_template or chat_template
        self._special_tokens = special_tokens or {}
        self.vocab_size = vocab_size or backend.get_vocab_size(with_added_tokens=True)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self._longest = max((len(token) for token in backend.get_vocab()), default=1)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Reads a model directory, never the network. Raises `InvalidRequest` naming `model`."""
        folder = Path(path)
        try:
            loaded = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            message = f"no tokenizer can be read in {folder}: {error}"
            raise InvalidRequest("model", message) from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise InvalidRequest(
                "model", f"the tokenizer in {folder} has no tokenizer.json form, which is needed"
            )
        config = _read_json(folder / "config.json")
        config = {**config, **config.get("text_config", {})}
        generation = _read_json(folder / "generation_config.json")
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        eos_ids = [eos] if isinstance(eos, int) else list(eos or ())
        if loaded.eos_token_id is not None:
            eos_ids.append(loaded.eos_token_id)
        template: Any = loaded.chat_template
        tool_template = None
        if isinstance(template, dict):
            template, tool_template = template.get("default"), template.get("tool_use")
        return cls(
            backend,
            eos_ids=eos_ids,
            vocab_size=config.get("vocab_size"),
            chat_template=template,
            tool_template=tool_template,
            special_tokens={
                name: str(token)
                for name, token in loaded.special_tokens_map.items()
                if isinstance(token, str)
            },
        )

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    @property
    def decoding(self) -> Decoding:
        return self._decoding

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def writes(self, marker: str) -> bool:
        """Whether the marker is text like any other, and no special token."""
        return self._backend.token_to_id(marker) not in self._special_ids

    def vocabulary(self) -> Vocabulary:
        """As grammars see it; takes a moment. Raises `InvalidRequest` where they cannot."""
        return Vocabulary(self._backend, self.vocab_size, self._special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with `add_special_tokens`, whatever the model puts around a plain text."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def surely_longer_than(self, text: str, tokens: int) -> bool:
        """Whether a text has more characters than that many tokens can hold: a check that costs
        nothing, ahead of tokenizing. False where the vocabulary gives no such bound."""
        if self._decoding.kind != "bytes":
            return False
        shrink = 1 if self._backend.normalizer is None else _NORMALIZERS_SHRINK
        return len(text) > tokens * self._longest * shrink

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        template_kwargs: dict[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        """The prompt text of a conversation (`content` of a message: a string or text parts), with
        the tools that may be called in it.

        Raises `InvalidRequest` where the model has no template or the template refuses.
        """
        return render_chat(
            self._tool_template if tools else self._template,
            messages,
            tools=tools,
            special_tokens=self._special_tokens,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs or {},
        )

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id outside the vocabulary."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = token_bytes(self._backend, self._decoding, token)
        return found

    def token_text(self, token: int) -> str:
        """One token shown alone: its text, or `bytes:\\xe2\\x80` where it is no whole character."""
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def decode_with_backend(self, ids: Sequence[int]) -> str:
        """The library's own decoding, special tokens kept: for decoders that need context."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    def detokenizer(
        self,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: Iterable[str] = (),
    ) -> Detokenizer:
        """A stream's text, continuing `prompt` (whose own text is not part of it). The special
        tokens in `shown` are not skipped."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if skipped and shown:
            skipped -= {self._backend.token_to_id(each) for each in shown}
        return Detokenizer(self, prompt, skipped)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The whole text of `ids`."""
        stream = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return stream.feed(ids) + stream.flush()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
