"""Stop strings in streamed text, held back until it is certain that they are none.

The text ends in front of the stop string that is complete first; of several complete at the same
character, the longest. That is a property of the text alone, so it does not matter in which pieces
the text arrives. An Aho-Corasick automaton does it in constant time a character: its state is the
longest suffix that begins some stop string, which is exactly what must be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton: immutable, shared by all streams of a request."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        self.match = [0]  # length of the longest stop string that ends in this state
        for stop in stops:
            self._insert(stop)
        self._link()

    def __bool__(self) -> bool:
        return len(self.depth) > 1

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = following
        self.match[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], character)
                self.match[child] = max(self.match[child], self.match[self._fail[child]])
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character, from state 0 at the start of a text."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fail[state]


class StopChecker:
    """One stream. After a match, `stopped` is true and no more text comes out."""

    def __init__(self, stops: StopStrings, *, include_stop: bool = False) -> None:
        self._stops = stops
        self._include = include_stop
        self._state = 0
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The part of held-back and new text that may be shown now."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            self._state = self._stops.step(self._state, buffer[position])
            length = self._stops.match[self._state]
            if length:
                self.stopped = True
                self._held = ""
                end = position + 1
                return buffer[: end if self._include else end - length]
        safe = len(buffer) - self._stops.depth[self._state]
        self._held = buffer[safe:]
        return buffer[:safe]

    def pass_unchecked(self, text: str) -> str:
        """Text in which no stop string counts, nor begins: the first `min_tokens` of an answer."""
        shown, self._state = self.flush() + text, 0
        return shown

    def flush(self) -> str:
        """At the end of the stream: what was held back and became no stop string."""
        held, self._held = self._held, ""
        self._state = 0
        return held
