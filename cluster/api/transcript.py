"""From an engine's token events to what a client may see of one choice.

Joins the detokenizer, the stop strings and the logprobs of each token: a token's entry is released
when its text is, so that nothing of a stop string shows there either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.cluster.api.answers import FinishReason
from octavo.cluster.text.pieces import Piece
from octavo.cluster.text.stops import StopChecker, StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams


class ShownToken(NamedTuple):
    """A token's logprobs and the character of the choice's own text where it begins."""

    offset: int
    logprob: Logprob


@dataclass(slots=True)
class Delta:
    """What one event adds. `finish` is set in the last one. Where an answer is read for reasoning
    and calls of tools, `parts` are what `text` consists of."""

    text: str = ""
    tokens: list[ShownToken] = field(default_factory=list)
    finish: FinishReason | None = None
    parts: list[Piece] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.finish)


class Transcript:
    """One choice. `sampling` is what the client asked for; totals count every generated token,
    those of a stop string and the end token included. `score` is what ranked a beam. `markers` are
    special tokens that are text nevertheless."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        sampling: SamplingParams,
        stops: StopStrings,
        markers: Iterable[str] = (),
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(
            request.prompt, skip_special_tokens=sampling.skip_special_tokens, shown=markers
        )
        self._checker = StopChecker(stops, include_stop=sampling.include_stop_str_in_output)
        self._show_stop_token = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._decoded = 0  # characters so far, held-back ones included
        self._shown = 0  # characters released
        self._waiting: deque[tuple[int, ShownToken]] = deque()  # with the end of the token's text
        self.generated = 0
        self.reasoning_tokens = 0
        self.logprob_sum = 0.0
        self.score: float | None = None
        self.cached_tokens = 0
        self.prompt_logprobs: list[Logprob | None] | None = None

    @property
    def mean_logprob(self) -> float:
        return self.logprob_sum / max(1, self.generated)

    def feed(self, event: TokenEvent) -> Delta:
        """Takes the next event; after a `Delta` with `finish` no more may follow."""
        self.heed_prompt(event)
        delta = self._feed(event)
        if event.cumulative_logprob is not None:
            self.logprob_sum, self.score = event.cumulative_logprob, event.score
        return delta

    def heed_prompt(self, event: TokenEvent) -> None:
        """Takes what an event of any choice tells of the prompt that they share."""
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs

    def _feed(self, event: TokenEvent) -> Delta:
        text = ""
        for position, token in enumerate(event.tokens):
            self.generated += 1
            offset = self._decoded
            if not self._ends_with(event, position):
                text += self._check(self._detokenizer.feed((token,)))
            if event.logprobs:
                logprob = event.logprobs[position]
                self.logprob_sum += logprob.logprob
                self._waiting.append((self._decoded, ShownToken(offset, logprob)))
            if self._stopped:
                return self._end(text, "stop")
        if event.finish is None:
            return Delta(text, self._release(text))
        text += self._check(self._detokenizer.flush(), last=True)
        if self._stopped:
            return self._end(text, "stop")
        text += self._unheld()
        return self._end(text, "stop" if event.finish is Finish.STOP else "length")

    @property
    def _stopped(self) -> bool:
        """Whether the answer ends where its text says so."""
        return self._checker.stopped

    def _ends_with(self, event: TokenEvent, position: int) -> bool:
        """Whether this token ended the answer and so is not part of its text."""
        return (
            event.stop_token is not None
            and position == len(event.tokens) - 1
            and event.tokens[position] == event.stop_token
            and not self._show_stop_token
        )

    def _check(self, text: str, *, last: bool = False) -> str:
        """Takes more text, and returns what may be shown now."""
        self._decoded += len(text)
        return self._look_for_stops(text)

    def _look_for_stops(self, text: str) -> str:
        if self.generated <= self._min_tokens:
            return self._checker.pass_unchecked(text)
        return self._checker.feed(text)

    def _unheld(self) -> str:
        """What was held back and became no stop string."""
        return self._checker.flush()

    def _release(self, text: str) -> list[ShownToken]:
        self._shown += len(text)
        released = []
        while self._waiting:
            end, shown = self._waiting[0]
            if shown.offset >= self._shown or end > self._shown:
                break
            released.append(shown)
            self._waiting.popleft()
        return released

    def _end(self, text: str, finish: FinishReason) -> Delta:
        released = self._release(text)
        for _, shown in self._waiting:
            if not self._stopped or shown.offset < self._shown:
                released.append(shown)
        self._waiting.clear()
        return Delta(text, released, finish)
