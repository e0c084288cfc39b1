"""What a client may send to `/v1/responses`. Unknown fields are ignored; nothing is stored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class InputPart(msgspec.Struct, kw_only=True):
    """A piece of a message, of an output or of reasoning."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """A message, a call of a function, its output, or reasoning: what `type` says."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ResponsesTool(msgspec.Struct, kw_only=True):
    """`parameters` is a JSON schema."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, kw_only=True):
    type: str = "function"
    name: str | None = None


class ResponsesToolChoice(AllowedTool, kw_only=True):
    """One function by its name, or with `mode` only some of the tools."""

    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """OpenAI's fields, then vLLM's extra ones."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None
    truncation: Any = None
    top_logprobs: Any = None


INSTEAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), "nothing is stored here; send the whole conversation as input"),
    "conversation": ((), "nothing is stored here; send the whole conversation as input"),
    "prompt": ((), "prompts are not stored here; send it as instructions and input"),
    "background": ((False,), "nothing is stored here, so an answer must be waited for"),
    "truncation": (("disabled",), "an input that is too long is refused; send less of it"),
    "top_logprobs": ((0,), "ask /v1/chat/completions for logprobs"),
}
"""Fields that are not served: values that change nothing, and what to do instead."""
