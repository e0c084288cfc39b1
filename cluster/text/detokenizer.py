"""Token ids of one stream to text, a few at a time.

Works on bytes: what each token stands for is known alone, and a UTF-8 decoder holds back at most
three bytes until a character is whole. So a token costs the same however long the stream is.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.cluster.text.tokens import Tokenizer


class Detokenizer:
    """Text of one stream. `feed` returns what is certain; `flush` what is left at the end.

    The first token keeps its leading space when there is a prompt with text before it. `skipped`
    are tokens that are no text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skipped: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.decoding.strip
        self._in_context = tokenizer.decoding.kind == "context"
        self._last: int | None = None
        for token in reversed(prompt):
            if token not in self._skipped:
                self._last = token
                self._strip = "nothing"
                break

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return self._decoder.decode(b"".join([self._piece(id_) for id_ in ids]))

    def flush(self) -> str:
        """At the end of the stream: U+FFFD if it stopped inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _piece(self, token: int) -> bytes:
        if token in self._skipped:
            return b""
        if self._in_context:
            return self._piece_in_context(token)
        piece = self._tokenizer.bytes_of(token)
        if self._strip != "nothing" and piece:
            piece = piece.removeprefix(b" ") if self._strip == "one space" else piece.lstrip(b" ")
            self._strip = "nothing"
        return piece

    def _piece_in_context(self, token: int) -> bytes:
        last, self._last = self._last, token
        if last is None:
            return self._tokenizer.bytes_of(token)
        before = self._tokenizer.decode_with_backend([last])
        both = self._tokenizer.decode_with_backend([last, token])
        return both[len(before) :].encode()
