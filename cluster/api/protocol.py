"""What a client may send: OpenAI's requests plus vLLM's extra sampling fields, as schemas.

msgspec rather than pydantic: it checks while it parses, in one pass over the bytes; it refuses
NaN, Infinity and unpaired surrogates, which a JSON library that hands over Python objects lets
through; and the same library carries the engine's wire. Unknown fields are ignored, because
clients send many. Bounds are not here but in `octavo.scheduler.sampling` and `validate.py`.

Fields typed `Any` are those that are not served: `UNSERVED` lists the values that change nothing
and so are accepted; anything else is refused by name, never ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True):
    """OpenAI's wrapping of a schema. `strict` or not, the answer is held to it."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's: one of these."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    disable_additional_properties: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Shared by both kinds of completion. None means the default, as OpenAI's spec has it.

    `max_tokens` absent is OpenAI's default; null is as many as the context and the pool allow.
    """

    model: str | None = None
    max_tokens: int | None | UnsetType = UNSET
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    logits_processors: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    suffix: Any = None
    prompt_embeds: Any = None


class PastFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | None = None


class PastToolCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    type: str = "function"
    function: PastFunction | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[PastToolCall] | None = None
    tool_call_id: str | None = None

    function_call: Any = None
    audio: Any = None


class ContentPart(msgspec.Struct, kw_only=True):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """`parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: str
    function: FunctionDefinition | None = None


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    type: str = "function"
    function: FunctionName | None = None


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ToolChoice(NamedTool, kw_only=True):
    """One function by its name, or only some of the tools."""

    allowed_tools: AllowedTools | None = None


class ChatRequest(SamplingFields, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    continue_final_message: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text or a conversation, to see its tokens."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


UNSERVED: dict[str, tuple[Any, ...]] = {
    "logits_processors": ([],),
    "suffix": ("",),
    "prompt_embeds": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": ([], ["text"]),
    "prediction": (),
    "web_search_options": (),
    "continue_final_message": (False,),
}
