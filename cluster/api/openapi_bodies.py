"""What types alone do not say of a request's body in `/openapi.json`: what may not be empty, which
words a field may be, and which fields go together. Whoever sends what the description allows is
refused only for what it cannot know: the model's context and vocabulary, the other fields' values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.cluster.api.prompts import ROLES
from octavo.cluster.api.protocol import UNSERVED
from octavo.cluster.api.responses_input import ROLES as INPUT_ROLES
from octavo.cluster.api.responses_input import TEXTS
from octavo.cluster.api.responses_protocol import INSTEAD
from octavo.scheduler.sampling import BOUNDS

Schema = dict[str, Any]

_BOUNDS = {
    **BOUNDS,
    "best_of": (0, BOUNDS["best_of"][1]),  # 0 is as good as none
    "top_logprobs": BOUNDS["logprobs"],
    "min_tokens": (0, None),
}
_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string"}
_SOME_TEXT: Schema = {"type": "string", "minLength": 1}
_IDS: Schema = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS: Schema = {"type": "array", "minItems": 1, "items": _SOME_TEXT}
_NOTHING: Schema = {"enum": [None, []]}


def complete_bodies(schemas: dict[str, Schema], completion_logprobs: int) -> None:
    """`schemas` are those of `protocol` and `responses_protocol`, by name."""
    completion, chat = schemas["CompletionRequest"], schemas["ChatRequest"]
    responses = schemas["ResponsesRequest"]
    _narrow(completion, _BOUNDS | {"logprobs": (0, completion_logprobs)}, UNSERVED)
    _narrow(chat, _BOUNDS, UNSERVED)
    _narrow(responses, _BOUNDS, {name: harmless for name, (harmless, _) in INSTEAD.items()})
    for body in (completion, chat, responses):
        narrower = {
            "stop": _or_null(_SOME_TEXT, {"type": "array", "items": _SOME_TEXT}),
            "bad_words": _or_null({"type": "array", "items": {**_SOME_TEXT, "pattern": r"\S"}}),
            "stop_token_ids": _or_null({**_IDS, "minItems": 0}),
            "allowed_token_ids": _or_null(_IDS),
            "cache_salt": _or_null(_SOME_TEXT),
            "repetition_penalty": _or_null({"type": "number", "exclusiveMinimum": 0}),
            "logit_bias": _or_null(
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]+$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                }
            ),
        }
        fields = body["properties"]
        fields |= {name: schema for name, schema in narrower.items() if name in fields}
    prompts = [_SOME_TEXT, _TEXTS, _IDS, {"type": "array", "minItems": 1, "items": _IDS}]
    _require(completion, prompt={"anyOf": prompts})
    _require(schemas["DetokenizeRequest"], tokens={**_IDS, "minItems": 0})
    for name in ("Tool", "ResponsesTool"):
        _require(schemas[name], type={"const": "function"})
    _require(schemas["Tool"], function=_given(schemas["Tool"], "function"))
    _require(schemas["ResponsesTool"], name=_SOME_TEXT)
    _require(schemas["PastToolCall"], function=_given(schemas["PastToolCall"], "function"))
    _require(schemas["FunctionDefinition"], name=_SOME_TEXT)
    _describe_messages(schemas)
    _describe_input(schemas)


def _describe_messages(schemas: dict[str, Schema]) -> None:
    message, part, asked = (schemas[n] for n in ("Message", "ContentPart", "TokenizeRequest"))
    message["properties"] |= {"function_call": _NOTHING, "audio": _NOTHING}
    others = [role for role in ROLES if role != "assistant"]
    _variants(
        message,
        {"role": {"const": "assistant"}},
        {"role": {"enum": others}, "content": _given(message, "content")},
        optional=[{}, {"tool_calls": _NOTHING}],
    )
    _variants(
        part,
        {"text": _TEXT},
        {"type": {"const": "refusal"}, "refusal": _TEXT},
        optional=[{"type": {"const": "text"}}, {}],
    )
    messages = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}}
    schemas["ChatRequest"]["properties"]["messages"] = messages
    _variants(
        asked,
        {"prompt": _SOME_TEXT},
        {"messages": messages},
        optional=[{"messages": _NULL}, {"prompt": _NULL}],
    )


def _describe_input(schemas: dict[str, Schema]) -> None:
    item, part, asked = (schemas[n] for n in ("InputItem", "InputPart", "ResponsesRequest"))
    items = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InputItem"}}
    _require(asked, input={"anyOf": [_TEXT, items]})
    _variants(
        part,
        {"type": {"enum": list(TEXTS)}, "text": _TEXT},
        {"type": {"const": "refusal"}, "refusal": _TEXT},
    )
    _variants(
        item,
        {"role": {"enum": list(INPUT_ROLES)}, "content": _given(item, "content")},
        {"type": {"const": "function_call"}, "name": _SOME_TEXT, "call_id": _SOME_TEXT},
        {
            "type": {"const": "function_call_output"},
            "call_id": _SOME_TEXT,
            "output": _given(item, "output"),
        },
        {"type": {"const": "reasoning"}},
        optional=[{"type": {"const": "message"}}, {}, {}, {}],
    )


def _narrow(
    schema: Schema,
    bounds: Mapping[str, tuple[float, float | None]],
    unserved: Mapping[str, tuple[Any, ...]],
) -> None:
    """Writes into the schema of a body what its numbers may be, and the fields that are not served,
    which may only say that they are not wanted."""
    for name, field in schema["properties"].items():
        if name in unserved:
            field["enum"] = [None, *unserved[name]]
        for kind in field.get("anyOf", ()):
            if name in bounds and kind.get("type") in ("integer", "number"):
                low, high = bounds[name]
                kind["minimum"] = low
                if high is not None:
                    kind["maximum"] = high


def _or_null(*kinds: Schema) -> Schema:
    return {"anyOf": [*kinds, _NULL], "default": None}


def _given(schema: Schema, name: str) -> Schema:
    """A field that may be null, where it may not."""
    return {"anyOf": [kind for kind in schema["properties"][name]["anyOf"] if kind != _NULL]}


def _require(schema: Schema, **fields: Schema) -> None:
    schema["properties"] |= fields
    schema["required"] = list(dict.fromkeys([*schema.get("required", ()), *fields]))


def _variants(schema: Schema, *needed: Schema, optional: list[Schema] | None = None) -> None:
    """Makes it one of several: each needs fields that the others may do without."""
    fields = schema.pop("properties")
    schema.pop("required", None)
    schema["anyOf"] = [
        {"type": "object", "properties": {**fields, **must, **may}, "required": list(must)}
        for must, may in zip(needed, optional or [{}] * len(needed), strict=True)
    ]
