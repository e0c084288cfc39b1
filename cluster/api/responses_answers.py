"""What `/v1/responses` sends back: OpenAI's objects and the events of a stream, field for field."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from octavo.cluster.api.answers import Usage

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = []


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningText] = []


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """`arguments` are JSON as the model wrote it, which it may have got wrong."""

    id: str
    status: Status = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponsesUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponsesUsage:
        """The same in this endpoint's words."""
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                usage.completion_tokens_details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )


class Incomplete(msgspec.Struct):
    reason: str


class ResponseAnswer(msgspec.Struct, kw_only=True):
    """The whole answer; what a request said comes back in it."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    error: None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: dict[str, str | None] = {}
    store: bool = False
    temperature: float
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_p: float
    truncation: str = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None = None


class ResponseEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One event of a stream: `type` says which of the other fields it has."""

    type: str
    sequence_number: int | None = None
    response: ResponseAnswer | None = None
    item: Item | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: list[Any] | None = None


class ErrorEvent(msgspec.Struct, kw_only=True):
    """What went wrong after a stream had begun."""

    type: str = "error"
    sequence_number: int
    code: str | None
    message: str
    param: str | None


def to_named_event(event: ResponseEvent | ErrorEvent) -> bytes:
    """One server-sent event with its name, as clients of this endpoint expect it."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))
