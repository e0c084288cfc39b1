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
from octavo.cluster.api.openapi_bodies import complete_bodies
from octavo.cluster.api.overview import OverviewAnswer
from octavo.cluster.api.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.cluster.api.responses_answers import ResponseAnswer, ResponseEvent
from octavo.cluster.api.responses_protocol import ResponsesRequest

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
_BYTES = ("/debug/look", "/debug/simulation", "/debug/journal", "/debug/journal/sent")
_STREAMED: dict[str, type] = {
    "/v1/completions": CompletionAnswer,
    "/v1/chat/completions": ChatChunk,
    "/v1/responses": ResponseEvent,
}
_KEYED = ("/v1/", "/tokenize", "/detokenize")  # what a client's key is asked for
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
            if path in _STREAMED:
                content["text/event-stream"] = _events(of[_STREAMED[path]], of[ErrorAnswer])
            if path == "/metrics":
                content["text/plain"] = {"schema": {"type": "string"}}
            if path in _BYTES:
                content["application/octet-stream"] = {"schema": {"type": "string"}}
            if content:
                operation["responses"]["200"]["content"] = content
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "What went wrong",
                "content": {"application/json": {"schema": of[ErrorAnswer]}},
            }
            if path == "/debug/journal/sent":
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/octet-stream": {"schema": {"type": "string"}}},
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
    complete_bodies(components, MAX_LOGPROBS)
    bearer = {"type": "http", "scheme": "bearer"}
    description["paths"] = paths
    description["components"] = {
        "schemas": components,
        "securitySchemes": {"apiKey": bearer, "adminKey": bearer},
    }
    return description


def _events(chunk: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """What each event of a stream has in its data, said as OpenAPI 3.2 says it: 3.1 has no words
    for it, but leaves room."""
    data = [
        {"contentMediaType": "application/json", "contentSchema": {"anyOf": [chunk, error]}},
        {"const": "[DONE]"},
    ]
    fields = {"event": {"type": "string"}, "data": {"type": "string", "anyOf": data}}
    return {"itemSchema": {"type": "object", "properties": fields, "required": ["data"]}}
