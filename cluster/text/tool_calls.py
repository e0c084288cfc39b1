"""Calls of tools in a model's answer, in the formats that models were trained to write them.

A text is a call once it has named one of the request's tools in the right form and its arguments
have begun; before that everything is held back, and becomes content where it turns out to be none.
From then on the arguments go out as they come, character for character as the model wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Literal

from octavo.cluster.text.pieces import Machine, Reading

ToolFormat = Literal["hermes", "llama3_json", "pythonic"]
_ARGUMENTS = ("arguments", "parameters")
_SCALAR = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class NoCall(Exception):
    """The character read last cannot be in a call."""


class CallReader(Machine):
    """What the formats share: one call as a JSON object, `{"name": …, "arguments": {…}}`.

    The keys may come in any order, `parameters` is understood too, and others do not matter.
    Arguments are an object, or a string that holds one. `end` is a marker that ends a call even
    where brackets are still open. With `single`, the answer ends with the first call.
    """

    end = ""
    may_lack_arguments = False

    def __init__(self, tools: Container[str], *, single: bool = False) -> None:
        self._tools = tools
        self._single = single
        super().__init__()

    def _call(self) -> Reading[bool]:
        """Reads one. False where it is none: then its text has been let out as content, up to the
        character that made it so, which is read again."""
        before = self._at_end
        try:
            yield from self._object()
        except NoCall:
            self._unread()
            self._emit("content")
            return False
        finally:
            self._at_end = before
        if self._single:
            self.finished = True
        return True

    def _object(self) -> Reading[None]:
        name: str | None = None
        arguments: str | None = None
        yield from self._expect("{")
        while True:
            key = yield from self._string()
            yield from self._expect(":")
            if key == "name" and name is None:
                name = yield from self._string()
                if name not in self._tools:
                    raise NoCall
                if arguments is not None:
                    break
            elif key in _ARGUMENTS and arguments is None:
                first = yield from self._solid()
                if first == "{" and name is not None:
                    self._unread()
                    self._emit("call", name)
                    yield from self._arguments()
                    yield from self._close()
                    return
                self._unread()
                arguments = _as_object((yield from self._value()))
            else:
                yield from self._value()
            following = yield from self._solid()
            if following == "}":
                self._unread()
                break
            if following != ",":
                raise NoCall
        if name is None or (arguments is None and not self.may_lack_arguments):
            yield from self._solid()
            raise NoCall
        self._emit("call", name)
        self._emit("arguments", arguments or "{}")
        yield from self._close()

    def _close(self) -> Reading[None]:
        """What may follow the arguments in the object, its bracket, and the end marker. All of it
        is markup; the first character that cannot be is read again."""
        self._at_end = "markup"
        try:
            while (yield from self._solid()) == ",":
                yield from self._string()
                yield from self._expect(":")
                yield from self._value()
            if self._held[-1] != "}":
                self._unread()
        except NoCall:
            self._unread_all()
            return
        self._emit("markup")
        if self.end:
            yield from self._skip_space()
            if (yield from self._matches(self.end)):
                self._emit("markup")

    def _arguments(self) -> Reading[None]:
        """An object, let out as it comes. Whether it is valid is not looked at: a client is to see
        what the model wrote."""
        self._at_end = "arguments"
        depth, quoted, escaped, matched = 0, False, False, 0
        while True:
            character = yield from self._next()
            if quoted:
                quoted = escaped or character != '"'
                escaped = character == "\\" and not escaped
            elif self.end and character == self.end[matched]:
                matched += 1
                if matched == len(self.end):
                    self._unread(matched)
                    self._emit("arguments")
                    return
                continue
            else:
                matched = 1 if self.end and character == self.end[0] else 0
                quoted = character == '"'
                depth += (character in "{[") - (character in "}]")
            if not matched:
                self._emit("arguments")
            if depth == 0:
                return

    def _value(self) -> Reading[str]:
        """Any value, as it is written."""
        first = yield from self._solid()
        start = len(self._held) - 1
        if first == '"':
            yield from self._to_quote()
        elif first in "{[":
            depth = 1
            while depth:
                character = yield from self._next()
                if character == '"':
                    yield from self._to_quote()
                depth += (character in "{[") - (character in "}]")
        elif first in _SCALAR:
            while (yield from self._next()) in _SCALAR:
                pass
            self._unread()
        else:
            raise NoCall
        return "".join(self._held[start:])

    def _string(self) -> Reading[str]:
        """A string's content."""
        yield from self._expect('"')
        start = len(self._held) - 1
        yield from self._to_quote()
        try:
            text: str = json.loads("".join(self._held[start:]), strict=False)
        except ValueError:
            raise NoCall from None
        return text

    def _to_quote(self, quote: str = '"') -> Reading[None]:
        escaped = False
        while (character := (yield from self._next())) != quote or escaped:
            escaped = character == "\\" and not escaped

    def _expect(self, character: str) -> Reading[None]:
        if (yield from self._solid()) != character:
            raise NoCall


class HermesCalls(CallReader):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen write it, anywhere
    in the answer and as often as they like."""

    start, end = "<tool_call>", "</tool_call>"
    may_lack_arguments = True

    def _read(self) -> Reading[None]:
        while True:
            matched = 0
            while matched < len(self.start):
                character = yield from self._next()
                if character == self.start[matched]:
                    matched += 1
                elif character == self.start[0]:
                    self._unread()
                    self._emit("content")
                    matched = 0
                else:
                    self._emit("content")
                    matched = 0
            if (yield from self._call()):
                if self._single:
                    yield from self._rest("markup")
                yield from self._skip_space()


class Llama3Calls(CallReader):
    """`{"name": …, "parameters": {…}}` and nothing before it but Llama's `<|python_tag|>`, as
    Llama 3 writes it; several with `;` between. An answer that does not begin so has no calls."""

    tag = "<|python_tag|>"

    def _read(self) -> Reading[None]:
        first = yield from self._solid()
        self._unread()
        if first != self.tag[0] or (yield from self._matches(self.tag)):
            while (yield from self._call()):
                if self._single:
                    yield from self._rest("markup")
                yield from self._skip_space()
                if (yield from self._next()) == ";":
                    self._emit("markup")
                else:
                    self._unread()
        yield from self._rest("content")


def _as_object(value: str) -> str:
    """Arguments of a call that was held back, as the object they must be."""
    try:
        read: Any = json.loads(value, strict=False)
        if isinstance(read, str):
            value, read = read, json.loads(read, strict=False)
            value.encode()  # half a surrogate pair would fit no answer
    except (ValueError, RecursionError):
        raise NoCall from None
    if read is None:
        return "{}"
    if not isinstance(read, dict):
        raise NoCall
    return value
