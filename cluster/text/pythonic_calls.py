"""Calls of tools written as Python: `[get_weather(city="Paris"), add(a=1, b=[2, 3])]`."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.cluster.text.pieces import Reading
from octavo.cluster.text.tool_calls import CallReader, NoCall

DEEPEST = 32  # lists and dictionaries in one another
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|.)", re.S
)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": "", **{each: each for each in "\\'\""}}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class PythonicCalls(CallReader):
    """The list and nothing before it, as Llama 3.2 writes it. An answer that does not begin so has
    no calls. Arguments are told apart by keywords and become JSON, each call's at its end."""

    def _read(self) -> Reading[None]:
        if (yield from self._solid()) == "[":
            while (yield from self._call()):
                if self._single:
                    yield from self._rest("markup")
                yield from self._skip_space()
                following = yield from self._next()
                if following != ",":
                    if following == "]":
                        self._emit("markup")
                        yield from self._skip_space()
                    break
                self._emit("markup")
        yield from self._rest("content")

    def _object(self) -> Reading[None]:
        yield from self._solid()
        self._unread()
        name = yield from self._word()
        if name not in self._tools:
            raise NoCall
        arguments: dict[str, Any] = {}
        yield from self._expect("(")
        while (yield from self._solid()) != ")":
            self._unread()
            keyword = yield from self._word()
            if not keyword.isidentifier() or keyword in arguments:
                raise NoCall
            yield from self._expect("=")
            arguments[keyword] = yield from self._python(0)
            if not (yield from self._goes_on(")")):
                break
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            text.encode()  # half a surrogate pair would fit no answer
        except ValueError:
            raise NoCall from None
        self._emit("call", name)
        self._emit("arguments", text)

    def _python(self, depth: int) -> Reading[Any]:
        """A literal."""
        first = yield from self._solid()
        if depth == DEEPEST:
            raise NoCall
        if first in "\"'":
            return (yield from self._quoted(first))
        if first == "[":
            return (yield from self._list(depth))
        if first == "{":
            return (yield from self._dictionary(depth))
        self._unread()
        word = yield from self._word("+-.")
        if word in _WORDS:
            return _WORDS[word]
        try:
            return json.loads(word)  # a number, as no other word of JSON is left
        except ValueError:
            raise NoCall from None

    def _list(self, depth: int) -> Reading[list[Any]]:
        items: list[Any] = []
        while (yield from self._solid()) != "]":
            self._unread()
            items.append((yield from self._python(depth + 1)))
            if not (yield from self._goes_on("]")):
                break
        return items

    def _dictionary(self, depth: int) -> Reading[dict[str, Any]]:
        items: dict[str, Any] = {}
        while (quote := (yield from self._solid())) != "}":
            if quote not in "\"'":
                raise NoCall
            key = yield from self._quoted(quote)
            yield from self._expect(":")
            items[key] = yield from self._python(depth + 1)
            if not (yield from self._goes_on("}")):
                break
        return items

    def _goes_on(self, end: str) -> Reading[bool]:
        """Whether a comma comes, rather than the end."""
        following = yield from self._solid()
        if following not in (",", end):
            raise NoCall
        return following == ","

    def _quoted(self, quote: str) -> Reading[str]:
        start = len(self._held) - 1
        yield from self._to_quote(quote)
        return _ESCAPE.sub(_escaped, "".join(self._held[start + 1 : -1]))

    def _word(self, also: str = "") -> Reading[str]:
        """Letters, digits and what else may be in it; nothing if none comes."""
        start = len(self._held)
        while (character := (yield from self._next())).isalnum() or character in f"_{also}":
            pass
        self._unread()
        return "".join(self._held[start:])


def _escaped(match: re.Match[str]) -> str:
    """What stands behind a backslash; what Python does not know stays as it is."""
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _SHORT.get(code, match[0])
