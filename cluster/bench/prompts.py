"""Tokens and texts for requests whose pieces have only names.

A piece's tokens are drawn by its name and the seed alone: equal names begin with equal tokens, in
every run, and other names share nothing but by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.cluster.traces.request import Piece, Request
from octavo.scheduler.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.cluster.text.tokens import Tokenizer

UNKNOWN_VOCABULARY = range(100, 500)
"""Token ids that every model has, and that are special to none known to us."""

FEWEST_WORDS, MOST_WORDS = 64, 4096


class Prompts:
    """Makes prompts of the token ids in `alphabet`."""

    def __init__(self, alphabet: Sequence[int], seed: int) -> None:
        self._alphabet = np.asarray(alphabet)
        self._seed = seed

    def tokens(self, request: Request) -> list[int]:
        """`request.prompt_len` token ids."""
        return [token for piece in request.pieces for token in self._draw(piece)]

    def _draw(self, piece: Piece) -> list[int]:
        key = f"{self._seed}/{piece.name!r}".encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
        source = np.random.Generator(np.random.PCG64(number))
        places = source.integers(0, len(self._alphabet), piece.length)
        tokens: list[int] = self._alphabet[places].tolist()
        return tokens


def ordinary_tokens(tokenizer: Tokenizer) -> list[int]:
    """Token ids that add to a text and are not special."""
    special = tokenizer.special_ids
    return [
        token
        for token in range(tokenizer.vocab_size)
        if token not in special and tokenizer.bytes_of(token)
    ]


class Words:
    """Tokens that stand for the same text in every company: words with the space before them. Their
    texts, one after the other, become the very same tokens again, so that a prompt sent as text has
    the right length and shares exactly what it should.

    Raises `InvalidRequest` where the tokenizer has few such words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        words: dict[int, str] = {}
        for token in ordinary_tokens(tokenizer):
            raw = tokenizer.bytes_of(token)
            if raw[:1] == b" " and raw[1:].isalpha() and raw.isascii():
                words[token] = raw.decode()
                if len(words) == MOST_WORDS:
                    break
        self._words = words
        self.tokens = [token for token in words if self._stays((token, token))]
        if len(self.tokens) < FEWEST_WORDS or not self._stays(self.tokens):
            raise InvalidRequest(
                "prompt_format",
                "the tokenizer has too few words that stay one token each in a text; use "
                "--prompt-format ids",
            )
        self._added = len(tokenizer.encode(""))

    def text(self, tokens: Sequence[int]) -> str:
        """As many tokens, those that a server puts around a plain text included."""
        return self._join(tokens[: max(1, len(tokens) - self._added)])

    def _join(self, tokens: Sequence[int]) -> str:
        return "".join(self._words[token] for token in tokens)

    def _stays(self, tokens: Sequence[int]) -> bool:
        return self._tokenizer.encode(self._join(tokens), add_special_tokens=False) == list(tokens)
