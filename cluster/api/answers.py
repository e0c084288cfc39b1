"""What the front sends back: OpenAI's response objects, field for field, and their encoding.

`UNSET` fields are left out of the JSON; None is sent as null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

_encoder = msgspec.json.Encoder()
FinishReason = Literal["stop", "length", "tool_calls"]
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class ErrorBody(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = msgspec.field(
        default_factory=CompletionTokensDetails
    )


class ModelPermission(msgspec.Struct, kw_only=True):
    """What may be done with a model: OpenAI's list of old, which some clients still look into."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class Model(msgspec.Struct, kw_only=True):
    """`root` is where the server has it from, which vLLM's clients load the tokenizer of; `parent`
    the model that an adapter belongs to."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int | None = None
    permission: list[ModelPermission]


class ModelList(msgspec.Struct):
    data: list[Model]
    object: str = "list"


class IndexAnswer(msgspec.Struct, kw_only=True):
    name: str = "octavo"
    version: str
    models: list[str]
    endpoints: list[str]


class HealthAnswer(msgspec.Struct, kw_only=True):
    """`faults` says why models do not serve, by name, where others do."""

    status: Literal["ok", "degraded"] = "ok"
    faults: dict[str, str] | UnsetType = UNSET


class LoadAnswer(msgspec.Struct):
    """How many requests are under way, under vLLM's name."""

    server_load: int


class VersionAnswer(msgspec.Struct):
    version: str


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class ResetAnswer(msgspec.Struct, kw_only=True):
    reset: bool = True
    replicas: int


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """`arguments` are JSON as the model wrote it, which it may have got wrong."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class AssistantMessage(msgspec.Struct, kw_only=True):
    """`content` is null where there is nothing but calls of tools."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """More of the call `index`; the first has everything but the arguments' rest."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class Envelope(msgspec.Struct, kw_only=True):
    """What all kinds of answer have in common. `usage` None: a chunk before the last."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None | UnsetType = UNSET


class CompletionAnswer(Envelope, kw_only=True):
    """The whole answer, or a chunk of it."""

    object: str = "text_completion"
    choices: list[CompletionChoice]


class ChatAnswer(Envelope, kw_only=True):
    object: str = "chat.completion"
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatChunk(Envelope, kw_only=True):
    object: str = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


def to_json(answer: Any) -> bytes:
    return _encoder.encode(answer)


def to_event(answer: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(answer) + b"\n\n"


DONE = b"data: [DONE]\n\n"
