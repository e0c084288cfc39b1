"""The output of one response as it comes, and the events that tell of it. The whole output is what
the events have made, so the two cannot differ."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from octavo.cluster.api.answers import ChatDelta, ToolCallDelta
from octavo.cluster.api.responses_answers import (
    FunctionCallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    Status,
)

_WORD = {MessageItem: "output_text", ReasoningItem: "reasoning_text"}


class OutputDraft:
    """Items in their order: reasoning, messages and calls. `name` is of this response alone."""

    def __init__(self, name: str) -> None:
        self.items: list[Item] = []
        self._name = name
        self._open = False  # whether the last item may get more
        self._parts: list[str] = []  # of its text

    def add(self, delta: ChatDelta) -> Iterator[ResponseEvent]:
        """What more of the message does to the output."""
        if delta.reasoning_content:
            if not self._is_open(ReasoningItem):
                yield from self._begin(ReasoningItem(id=self._id("rs")))
            yield self._more("response.reasoning_text.delta", delta.reasoning_content)
        if delta.content:
            if not self._is_open(MessageItem):
                yield from self._begin(MessageItem(id=self._id("msg")))
            event = self._more("response.output_text.delta", delta.content)
            event.logprobs = []
            yield event
        for call in delta.tool_calls or ():
            if call.id:
                yield from self._begin(self._called(call))
            if call.function.arguments:
                yield self._more("response.function_call_arguments.delta", call.function.arguments)

    def end(self, status: Status = "completed") -> Iterator[ResponseEvent]:
        """Nothing more comes for the last item."""
        if not self._open:
            return
        self._open = False
        item, text = self.items[-1], "".join(self._parts)
        item.status = status
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            yield self._event(
                "response.function_call_arguments.done", name=item.name, arguments=text
            )
        else:
            word = _WORD[type(item)]
            part: OutputText | ReasoningText
            if isinstance(item, MessageItem):
                part = OutputText(text=text)
                item.content = [part]
                done = self._event(f"response.{word}.done", text=text, logprobs=[])
            else:
                part = ReasoningText(text=text)
                item.content = [part]
                done = self._event(f"response.{word}.done", text=text)
            done.content_index = 0
            yield done
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield self._event("response.output_item.done", item=item)

    def _begin(self, item: Item) -> Iterator[ResponseEvent]:
        yield from self.end()
        self.items.append(item)
        self._open, self._parts = True, []
        yield self._event("response.output_item.added", item=item)
        if not isinstance(item, FunctionCallItem):
            part = OutputText(text="") if isinstance(item, MessageItem) else ReasoningText(text="")
            yield self._event("response.content_part.added", content_index=0, part=part)

    def _more(self, kind: str, text: str) -> ResponseEvent:
        self._parts.append(text)
        event = self._event(kind, delta=text)
        if not isinstance(self.items[-1], FunctionCallItem):
            event.content_index = 0
        return event

    def _event(self, kind: str, **fields: object) -> ResponseEvent:
        event = ResponseEvent(type=kind, output_index=len(self.items) - 1, **fields)  # type: ignore[arg-type]
        if event.item is None:
            event.item_id = self.items[-1].id
        return event

    def _is_open(self, kind: type[Item]) -> bool:
        return self._open and isinstance(self.items[-1], kind)

    def _called(self, call: ToolCallDelta) -> FunctionCallItem:
        assert call.id and call.function.name
        return FunctionCallItem(id=self._id("fc"), call_id=call.id, name=call.function.name)

    def _id(self, kind: str) -> str:
        digest = blake2b(f"{self._name}-{len(self.items)}".encode(), digest_size=12)
        return f"{kind}_{digest.hexdigest()}"
