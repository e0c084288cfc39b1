"""An answer's text told apart while it comes: reasoning, content, and calls of tools.

A reader is a function of the text so far: in which portions it arrives makes no difference, and the
`raw` of all its pieces joins to the text. What is not certain yet is held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Literal, NamedTuple, Protocol, TypeVar

Kind = Literal["content", "reasoning", "call", "arguments", "markup"]
T = TypeVar("T")
Reading = Generator[None, str, T]


class Piece(NamedTuple):
    """`raw` is the slice of the text that it stands for, `text` what that says: content, reasoning,
    the name of the tool where a call begins, or more of that call's arguments, which are JSON.
    Markup says nothing."""

    kind: Kind
    raw: str
    text: str


class Reader(Protocol):
    """One answer's. After `finished` nothing that follows counts."""

    @property
    def finished(self) -> bool: ...

    def feed(self, text: str) -> list[Piece]:
        """What is certain after more text."""

    def flush(self) -> list[Piece]:
        """What was held back, once the text has ended."""


class Machine:
    """A reader written as a generator that is sent one character at a time.

    `_next` takes a character into what is held; `_emit` lets all that is held out as one kind;
    `_unread` gives characters back to be read again. `_at_end` is what the held text turns out to
    be if no more comes.
    """

    def __init__(self) -> None:
        self.finished = False
        self._pieces: list[Piece] = []
        self._held: list[str] = []
        self._again: deque[str] = deque()
        self._at_end: Kind = "content"
        self._run = self._read()
        next(self._run)

    def feed(self, text: str) -> list[Piece]:
        """See `Reader.feed`."""
        for character in text:
            self._run.send(character)
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> list[Piece]:
        """See `Reader.flush`."""
        self._emit(self._at_end)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self) -> Reading[None]:
        """Reads the whole answer, and never returns."""
        raise NotImplementedError

    def _next(self) -> Reading[str]:
        character = self._again.popleft() if self._again else (yield)
        self._held.append(character)
        return character

    def _solid(self) -> Reading[str]:
        """The next character that is no white space."""
        while (character := (yield from self._next())).isspace():
            pass
        return character

    def _unread(self, count: int = 1) -> None:
        self._again.extendleft(reversed(self._held[len(self._held) - count :]))
        del self._held[len(self._held) - count :]

    def _unread_all(self) -> None:
        self._unread(len(self._held))

    def _emit(self, kind: Kind, text: str | None = None) -> None:
        """Lets out what is held. It says itself, unless `text` is given; markup says nothing."""
        raw = "".join(self._held)
        self._held.clear()
        said = raw if text is None else text
        if kind == "markup":
            said = ""
        if not raw and not said:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.kind == kind != "call":
            self._pieces[-1] = Piece(kind, last.raw + raw, last.text + said)
        else:
            self._pieces.append(Piece(kind, raw, said))

    def _rest(self, kind: Kind) -> Reading[None]:
        """All that follows is of one kind."""
        self._at_end = kind
        while True:
            yield from self._next()
            self._emit(kind)

    def _matches(self, marker: str) -> Reading[bool]:
        """Whether the marker comes next. If not, what was read of it is left to be read again.
        `marker[0]` occurs in it only once."""
        for count, expected in enumerate(marker, 1):
            if (yield from self._next()) != expected:
                self._unread(count)
                return False
        return True

    def _skip_space(self) -> Reading[None]:
        """White space that belongs to the markup before it."""
        while (yield from self._next()).isspace():
            self._emit("markup")
        self._unread()
