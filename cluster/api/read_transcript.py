"""One choice whose text is read for reasoning and calls of tools, as stop strings count in the
content alone: not in what a model thinks, and not in the arguments of a call."""

from __future__ import annotations

from octavo.cluster.api.transcript import Delta, Transcript
from octavo.cluster.text.answer_reader import MARKERS, AnswerReader
from octavo.cluster.text.pieces import Piece
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams


class ReadTranscript(Transcript):
    """The `text` of its deltas is the model's own, markup included; their `parts` say what it
    is."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        sampling: SamplingParams,
        stops: StopStrings,
        *,
        reader: AnswerReader,
    ) -> None:
        super().__init__(tokenizer, request, sampling, stops, MARKERS)
        self._reader = reader
        self._parts: list[Piece] = []

    def _feed(self, event: TokenEvent) -> Delta:
        delta = super()._feed(event)
        delta.parts, self._parts = self._parts, []
        return delta

    @property
    def _stopped(self) -> bool:
        return self._checker.stopped or self._reader.finished

    def _check(self, text: str, *, last: bool = False) -> str:
        self._decoded += len(text)
        reasoned = self._reader.reasoning
        pieces = self._reader.feed(text)
        if reasoned or self._reader.reasoning:
            self.reasoning_tokens = self.generated  # it comes first
        if last:
            pieces += self._reader.flush()
        shown = ""
        for piece in pieces:
            shown += self._show(piece)
            if self._checker.stopped:
                break
        return shown

    def _show(self, piece: Piece) -> str:
        if piece.kind == "content":
            return self._content(self._look_for_stops(piece.raw))
        held = self._unheld()
        self._parts.append(piece)
        return held + piece.raw

    def _unheld(self) -> str:
        return self._content(super()._unheld())

    def _content(self, text: str) -> str:
        if text:
            self._parts.append(Piece("content", text, text))
        return text
