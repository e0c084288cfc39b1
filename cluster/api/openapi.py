"""`/openapi.json`: FastAPI's description of the routes, completed with the bodies that are parsed
and sent without FastAPI's help, so that what it says is what happens."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from octavo.cluster.api.admin import ADMIN_PATHS
from octavo.cluster.api.answers import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    DetokenizeAnswer,
    ErrorAnswer,
    HealthAnswer,
    IndexAnswer,
    LoadAnswer,
    Model,
    ModelList,
    ResetAnswer,
    TokenizeAnswer,
    VersionAnswer,
)
from octavo.cluster.api.completions import MAX_LOGPROBS
from octavo.cluster.api.overview import OverviewAnswer
from octavo.cluster.api.protocol import (
    UNSERVED,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.cluster.api.responses_answers import ResponseAnswer, ResponseEvent
from octavo.cluster.api.responses_protocol import ResponsesRequest
from octavo.scheduler.sampling import BOUNDS

_BODIES: dict[str, type] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_ANSWERS: dict[str, type] = {
    "/": IndexAnswer,
    "/health": HealthAnswer,
    "/load": LoadAnswer,
    "/version": VersionAnswer,
    "/v1/completions": CompletionAnswer,
    "/v1/chat/completions": ChatAnswer,
    "/v1/responses": ResponseAnswer,
    "/v1/models": ModelList,
    "/v1/models/{name}": Model,
    "/tokenize": TokenizeAnswer,
    "/detokenize": DetokenizeAnswer,
    "/debug/overview": OverviewAnswer,
    "/reset_prefix_cache": ResetAnswer,
}
_STREAMED: dict[str, type] = {
    "/v1/completions": CompletionAnswer,
    "/v1/chat/completions": ChatChunk,
    "/v1/responses": ResponseEvent,
}
_KEYED = ("/v1/", "/tokenize", "/detokenize")  # what a client's key is asked for
_BOUNDS = {**BOUNDS, "top_logprobs": BOUNDS["logprobs"], "min_tokens": (0, None)}
_REFERENCE = "#/components/schemas/{name}"


def describe(app: FastAPI, asks_for_key: bool) -> None:
    """Makes the app answer `/openapi.json` with the whole description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            plain = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _completed(plain, asks_for_key)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(description: dict[str, Any], asks_for_key: bool) -> dict[str, Any]:
    named = [*_BODIES.values(), *_ANSWERS.values(), *_STREAMED.values(), ErrorAnswer]
    kinds = list(dict.fromkeys(named))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for raw_path, methods in description["paths"].items():
        path = raw_path.replace("{name:path}", "{name}")
        paths[path] = methods
        for operation in methods.values():
            content: dict[str, Any] = {}
            if path in _ANSWERS:
                content["application/json"] = {"schema": of[_ANSWERS[path]]}
            if path in _STREAMED:  # OpenAPI 3.1 knows no events; each has this in its data
                event = {"schema": {"type": "string"}, "x-event-schema": of[_STREAMED[path]]}
                content["text/event-stream"] = event
            if path == "/metrics":
                content["text/plain"] = {"schema": {"type": "string"}}
            if path == "/debug/look":
                content["application/octet-stream"] = {"schema": {"type": "string"}}
            if content:
                operation["responses"]["200"]["content"] = content
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "What went wrong",
                "content": {"application/json": {"schema": of[ErrorAnswer]}},
            }
            if path in _BODIES:
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": of[_BODIES[path]]}},
                }
            if path in ADMIN_PATHS:
                operation["security"] = [{"adminKey": []}]
            elif asks_for_key and path.startswith(_KEYED):
                operation["security"] = [{"apiKey": []}]
    completion, chat = components["CompletionRequest"], components["ChatRequest"]
    _narrow(completion, _BOUNDS | {"logprobs": (0, MAX_LOGPROBS)})
    _narrow(chat, _BOUNDS)
    completion["required"] = ["prompt"]
    chat["properties"]["messages"]["minItems"] = 1
    bearer = {"type": "http", "scheme": "bearer"}
    description["paths"] = paths
    description["components"] = {
        "schemas": components,
        "securitySchemes": {"apiKey": bearer, "adminKey": bearer},
    }
    return description


def _narrow(schema: dict[str, Any], bounds: dict[str, tuple[float, float | None]]) -> None:
    """Writes into the schema of a body what its numbers may be, and the fields that are not served,
    which may only say that they are not wanted."""
    for name, field in schema["properties"].items():
        if name in UNSERVED:
            field["enum"] = [None, *UNSERVED[name]]
        for kind in field.get("anyOf", ()):
            if name in bounds and kind.get("type") in ("integer", "number"):
                low, high = bounds[name]
                kind["minimum"] = low
                if high is not None:
                    kind["maximum"] = high
