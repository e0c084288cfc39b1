"""How the text of one answer is to be read: first the reasoning, and calls of tools in the rest."""

from __future__ import annotations

from octavo.cluster.text.pieces import Piece, Reader
from octavo.cluster.text.reasoning import ReasoningReader

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>")


class AnswerReader:
    """Both readers one behind the other; either may be missing."""

    def __init__(self, reasoning: ReasoningReader | None, calls: Reader | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def finished(self) -> bool:
        """See `Reader.finished`."""
        return self._calls is not None and self._calls.finished

    @property
    def reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.reasoning

    def feed(self, text: str) -> list[Piece]:
        """See `Reader.feed`."""
        if self._reasoning is None:
            return self._read(text)
        pieces: list[Piece] = []
        for piece in self._reasoning.feed(text):
            pieces += self._read(piece.raw) if piece.kind == "content" else [piece]
        return pieces

    def flush(self) -> list[Piece]:
        """See `Reader.flush`."""
        pieces: list[Piece] = []
        for piece in self._reasoning.flush() if self._reasoning is not None else []:
            pieces += self._read(piece.raw) if piece.kind == "content" else [piece]
        return pieces + (self._calls.flush() if self._calls is not None else [])

    def _read(self, text: str) -> list[Piece]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [Piece("content", text, text)] if text else []
