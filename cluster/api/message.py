"""One choice's message out of what its answer consists of: piece by piece for a stream, and whole.
The whole message is its deltas joined, so the two cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from msgspec import UNSET

from octavo.cluster.api.answers import (
    AssistantMessage,
    CalledFunction,
    ChatDelta,
    FinishReason,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from octavo.cluster.api.transcript import Delta
from octavo.cluster.text.pieces import Piece


class Draft:
    """A choice's message as it comes. `name` is of this choice alone: the ids of its calls are made
    from it. With `tools`, white space in front of a call belongs to no content and is held back."""

    def __init__(self, name: str, *, tools: bool = False) -> None:
        self._name = name
        self._tools = tools
        self._space = ""
        self._begun = False
        self._calls = 0

    def add(self, new: Delta) -> Iterator[ChatDelta]:
        """What this adds to the message, in order; at most one call in each delta."""
        if not self._tools and not new.parts:
            if new.text:
                yield ChatDelta(content=new.text)
            return
        delta = ChatDelta()
        for kind, _, text in new.parts or [Piece("content", new.text, new.text)]:
            if kind == "content":
                if not (text := self._shown(text)):
                    continue
                if delta.tool_calls:
                    yield delta
                    delta = ChatDelta()
                delta.content = (delta.content or "") + text
            elif kind == "reasoning":
                delta.reasoning_content = (delta.reasoning_content or "") + text
            elif kind == "call":
                if delta.tool_calls:
                    yield delta
                    delta = ChatDelta()
                delta.tool_calls = [self._begin(text)]
            elif kind == "arguments":
                if not delta.tool_calls:
                    more = ToolCallDelta(index=self._calls - 1, function=FunctionDelta())
                    delta.tool_calls = [more]
                delta.tool_calls[0].function.arguments += text
        if new.finish and self._space and not self._calls:
            delta.content = (delta.content or "") + self._space
        if delta != ChatDelta():
            yield delta

    def reason(self, finish: FinishReason) -> FinishReason:
        """Why the choice ended."""
        return "tool_calls" if self._calls and finish == "stop" else finish

    def _shown(self, text: str) -> str:
        if not self._tools:
            return text
        text = self._space + text
        end = len(text.rstrip())
        text, self._space = text[:end], text[end:]
        if text and not self._begun:
            self._begun = True
            return text.lstrip() if self._calls else text
        return text

    def _begin(self, tool: str) -> ToolCallDelta:
        digest = blake2b(f"{self._name}-{self._calls}".encode(), digest_size=12).hexdigest()
        self._calls += 1
        return ToolCallDelta(
            index=self._calls - 1,
            id=f"call_{digest}",
            type="function",
            function=FunctionDelta(name=tool),
        )


def whole_message(deltas: Iterable[ChatDelta]) -> AssistantMessage:
    """The message that the deltas make."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        content.append(delta.content or "")
        reasoning.append(delta.reasoning_content or "")
        for call in delta.tool_calls or ():
            if call.id:
                calls.append(ToolCall(call.id, CalledFunction(call.function.name or "", "")))
                arguments.append([])
            arguments[call.index].append(call.function.arguments)
    for call_, parts in zip(calls, arguments, strict=True):
        call_.function.arguments = "".join(parts)
    text = "".join(content)
    return AssistantMessage(
        content=None if calls and not text else text,
        reasoning_content="".join(reasoning) or UNSET,
        tool_calls=calls or UNSET,
    )
