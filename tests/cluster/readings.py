"""Texts of answers, read in portions, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import strategies as st

from octavo.cluster.text.pieces import Kind, Piece, Reader

CUTS = st.lists(st.integers(1, 9), max_size=30)
Said = list[tuple[Kind, str]]


def pieces_of(reader: Reader, text: str, cuts: Iterable[int]) -> list[Piece]:
    """What is read of a text that comes in portions of these sizes, and the rest at once."""
    pieces, start = [], 0
    for length in cuts:
        pieces += reader.feed(text[start : start + length])
        start += length
    return pieces + reader.feed(text[start:]) + reader.flush()


def said(pieces: Iterable[Piece]) -> Said:
    """What pieces say, however they were cut."""
    joined: Said = []
    for kind, _, text in pieces:
        if kind == "markup":
            continue
        if joined and joined[-1][0] == kind != "call":
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def read(make: Callable[[], Reader], text: str) -> Said:
    """What a text says, after a check that it says so character by character too."""
    whole = pieces_of(make(), text, [])
    assert "".join(piece.raw for piece in whole) == text
    assert said(pieces_of(make(), text, [1] * len(text))) == said(whole)
    return said(whole)
