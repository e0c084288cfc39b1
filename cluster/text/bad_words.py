"""The tokens of words that must not be generated."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.cluster.text.tokens import Tokenizer


def spellings(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """How each word is written at the beginning of a text and behind a blank. As in vLLM, no other
    way to spell it counts, such as in pieces that the tokenizer would not make of it."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            if tokens := tokenizer.encode(text, add_special_tokens=False):
                found[tuple(tokens)] = None
    return tuple(found)
