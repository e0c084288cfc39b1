"""A request to `/v1/responses` as the chat request that it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from octavo.cluster.api.protocol import (
    AllowedTools,
    ChatRequest,
    ContentPart,
    FunctionDefinition,
    FunctionName,
    Message,
    NamedTool,
    PastFunction,
    PastToolCall,
    Tool,
    ToolChoice,
)
from octavo.cluster.api.responses_protocol import (
    INSTEAD,
    InputItem,
    InputPart,
    ResponsesRequest,
    ResponsesToolChoice,
    TextFormat,
)
from octavo.scheduler.errors import InvalidRequest

_SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "stream", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "ignore_eos"),
    *("cache_salt", "priority", "chat_template_kwargs"),
)
_RENAMED = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
ROLES = ("system", "developer", "user", "assistant")
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """Raises `InvalidRequest` for what is not served, or makes no sense."""
    for name, (harmless, instead) in INSTEAD.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise InvalidRequest(name, f"{name} is not supported by this server: {instead}")
    format = body.text.format if body.text is not None else None
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    return ChatRequest(
        **given,
        messages=_messages(body),
        max_tokens=UNSET,
        max_completion_tokens=body.max_output_tokens,
        tools=_tools(body),
        tool_choice=_choice(body.tool_choice)
        if isinstance(body.tool_choice, ResponsesToolChoice)
        else body.tool_choice,
        **_response_format(format),
    )


def in_our_words(error: InvalidRequest) -> InvalidRequest:
    """A refusal of the chat request, as one of the request that was sent."""
    for theirs, ours in _RENAMED.items():
        if error.param.split("[")[0] == theirs:
            param = error.param.replace(theirs, ours, 1)
            return type(error)(param, error.message.replace(theirs, ours))
    return type(error)(error.param.replace(".function", ""), error.message.replace(".function", ""))


def _messages(body: ResponsesRequest) -> list[Message]:
    """Consecutive items that one answer consisted of become one message again."""
    messages: list[Message] = []
    if body.instructions is not None:
        messages.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, Message(role="user", content=body.input)]
    if not body.input:
        raise InvalidRequest("input", "input must not be empty: a text, or a list of items")
    thought: str | None = None
    open_answer = False  # the last message is the model's, and may get calls
    for number, item in enumerate(body.input):
        where = f"input[{number}]"
        if item.type == "reasoning":
            thought = _text(item.content or item.summary, where)
            open_answer = False
            continue
        message = _message(item, where)
        if message.role == "assistant":
            message.reasoning_content, thought = thought, None
            if open_answer and message.tool_calls:
                last = messages[-1]
                last.tool_calls = [*(last.tool_calls or ()), *message.tool_calls]
                continue
        open_answer = message.role == "assistant"
        messages.append(message)
    return messages


def _message(item: InputItem, where: str) -> Message:
    match item.type:
        case "message":
            if item.role is None or item.content is None:
                raise InvalidRequest(where, f"{where} must have a role and content")
            if item.role not in ROLES:
                raise InvalidRequest(
                    f"{where}.role",
                    f"{where}.role must be one of {', '.join(ROLES)}, got {item.role!r}",
                )
            return Message(role=item.role, content=_content(item.content, where))
        case "function_call":
            if not item.name or not item.call_id:
                raise InvalidRequest(where, f"{where} must have a name and a call_id")
            function = PastFunction(name=item.name, arguments=item.arguments)
            call = PastToolCall(id=item.call_id, function=function)
            return Message(role="assistant", tool_calls=[call])
        case "function_call_output":
            if item.output is None or not item.call_id:
                raise InvalidRequest(where, f"{where} must have an output and a call_id")
            content = _content(item.output, where)
            return Message(role="tool", content=content, tool_call_id=item.call_id)
    raise InvalidRequest(
        where,
        f"{where} must be of type message, reasoning, function_call or function_call_output, "
        f"got {item.type!r}",
    )


def _content(content: str | list[InputPart], where: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    parts = []
    for number, part in enumerate(content):
        text = part.text if part.type in TEXTS else part.refusal
        if text is None:
            raise InvalidRequest(
                where, f"{where}: part {number} must be a text, got type {part.type!r}"
            )
        parts.append(ContentPart(type="text", text=text))
    return parts


def _text(content: str | Sequence[InputPart] | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = _content(list(content), where)
    return "\n".join(part.text or "" for part in parts if isinstance(part, ContentPart)) or None


def _tools(body: ResponsesRequest) -> list[Tool] | None:
    if body.tools is None:
        return None
    tools = []
    for number, tool in enumerate(body.tools):
        if tool.type != "function" or tool.name is None:
            what = "must have a name" if tool.type == "function" else f"has type {tool.type!r}"
            raise InvalidRequest(
                f"tools[{number}]", f"tools[{number}] {what}; only functions can be called here"
            )
        function = FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
        tools.append(Tool(type="function", function=function))
    return tools


def _choice(choice: ResponsesToolChoice) -> ToolChoice:
    def named(name: str | None) -> FunctionName | None:
        return None if name is None else FunctionName(name=name)

    if choice.type != "allowed_tools":
        return ToolChoice(type=choice.type, function=named(choice.name))
    allowed = [NamedTool(function=named(each.name)) for each in choice.tools or ()]
    return ToolChoice(
        type=choice.type, allowed_tools=AllowedTools(mode=choice.mode or "auto", tools=allowed)
    )


def _response_format(format: TextFormat | None) -> Mapping[str, Any]:
    """As chat requests have it: a JSON schema lies one level deeper there."""
    if format is None or format.type == "text":
        return {}
    asked = msgspec.to_builtins(format)
    inner = {name: value for name, value in asked.items() if name != "type" and value is not None}
    wanted = {"type": format.type, **({"json_schema": inner} if inner else {})}
    try:
        chat = msgspec.convert({"messages": [], "response_format": wanted}, ChatRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest("text.format", f"text.format: {error}") from None
    return {"response_format": chat.response_format}
