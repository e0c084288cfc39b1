"""The OpenAI-compatible HTTP server as a FastAPI app over the `EngineClient` of each model.

Knows nothing of Ray: the app is built where it runs, keeps its state in closures and needs no
lifespan, so that a Serve replica, a test and `uvicorn` alike call `create_app` and mount it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.cluster.api.admin import ADMIN_PATHS, add_admin_routes
from octavo.cluster.api.answers import (
    HealthAnswer,
    IndexAnswer,
    LoadAnswer,
    Model,
    ModelList,
    ModelPermission,
    VersionAnswer,
)
from octavo.cluster.api.chat import ChatCall, chat_call
from octavo.cluster.api.completions import CompletionCall, completion_call
from octavo.cluster.api.failures import BodyTooLarge, BodyTooSlow, failure
from octavo.cluster.api.front import Front
from octavo.cluster.api.fronts import Fronts
from octavo.cluster.api.guard import Guard
from octavo.cluster.api.metrics import CONTENT_TYPE, read_spelling, render_metrics
from octavo.cluster.api.openapi import describe
from octavo.cluster.api.origins import SameOrigin, answer_preflights
from octavo.cluster.api.pages import add_pages
from octavo.cluster.api.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.cluster.api.request_log import log_request
from octavo.cluster.api.responses import ResponsesCall, responses_call
from octavo.cluster.api.responses_answers import to_named_event
from octavo.cluster.api.responses_protocol import ResponsesRequest
from octavo.cluster.api.settings import FrontSettings, RequestLimits
from octavo.cluster.api.streaming import EventStream, failure_response, json_response, unless_gone
from octavo.cluster.api.tokenize_routes import detokenize_answer, tokenize_answer
from octavo.cluster.api.validate import parse
from octavo.cluster.api.version import octavo_version
from octavo.cluster.client import EngineClient
from octavo.cluster.text.tokens import Tokenizer

__all__ = ["FrontSettings", "RequestLimits", "create_app", "create_shared_app"]

T = TypeVar("T")


def create_app(
    client: EngineClient, settings: FrontSettings, tokenizer: Tokenizer | None = None
) -> FastAPI:
    """The app of one model. Loads the tokenizer of `settings.model_path` unless one is given."""
    loaded = tokenizer or Tokenizer.load(settings.model_path)
    return create_shared_app([Front(client, settings, loaded)])


def create_shared_app(models: list[Front]) -> FastAPI:
    """The app of several models, of which a request's `model` names one."""
    fronts = Fronts(tuple(models))
    for front in fronts.each:
        front.grammars.warm_up()
    app = FastAPI(title="Octavo", version=octavo_version(), docs_url=None, redoc_url=None)
    shared = fronts.shared
    app.add_middleware(SameOrigin, allowed=shared.allowed_origins)
    app.add_middleware(Guard, timeout=shared.request_timeout)
    answer_preflights(app, shared.allowed_origins)
    app.add_exception_handler(HTTPException, _no_such_route)
    _add_open_routes(app, fronts)
    _add_model_routes(app, fronts)
    _add_token_routes(app, fronts)
    add_admin_routes(app, fronts)
    add_pages(app)
    describe(app, shared.asks_for_key)
    return app


def _add_open_routes(app: FastAPI, fronts: Fronts) -> None:
    """What anyone may ask, with or without a key: nothing here tells of any request."""

    @app.get("/")
    async def index() -> Response:
        paths = ("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses")
        more = (
            "/tokenize",
            "/detokenize",
            "/health",
            "/load",
            "/metrics",
            "/version",
            "/dashboard",
        )
        admin = ADMIN_PATHS if fronts.shared.admin_api_key is not None else ()
        endpoints = [*paths, *more, "/openapi.json", *admin]
        models = list(fronts.names)
        return json_response(
            IndexAnswer(version=octavo_version(), models=models, endpoints=endpoints)
        )

    @app.get("/health")
    async def health() -> Response:
        return _health(fronts)

    @app.get("/load")
    async def load() -> Response:
        stats = [each for front in fronts.each for each in front.client.stats()]
        return json_response(LoadAnswer(sum(each.running + each.waiting for each in stats)))

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        text = render_metrics(
            {front.settings.served_model_names[0]: front.client.stats() for front in fronts.each},
            read_spelling(request.query_params.get("names")),
        )
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/version")
    async def version() -> Response:
        return json_response(VersionAnswer(octavo_version()))


def _health(fronts: Fronts) -> Response:
    """200 while any model serves: a load balancer must not take the others down with one."""
    faults = fronts.faults()
    if not faults:
        return json_response(HealthAnswer())
    if len(faults) < len(fronts.each):
        return json_response(HealthAnswer(status="degraded", faults=faults))
    message = "; ".join(dict.fromkeys(faults.values()))
    failed = failure(503, message, kind="server_error", code="engine_unavailable")
    return failure_response(failed)


def _add_model_routes(app: FastAPI, fronts: Fronts) -> None:
    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        _caller(fronts, request)
        return json_response(ModelList([_model(fronts.of(name), name) for name in fronts.names]))

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        _caller(fronts, request)
        front = fronts.of(name)
        return json_response(_model(front, front.served_model(name)))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        caller = _caller(fronts, request)
        body = await _body(request, CompletionRequest, fronts.shared.limits)
        front = fronts.of(body.model)
        return await _respond(front, request, await completion_call(front, body, caller))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        caller = _caller(fronts, request)
        body = await _body(request, ChatRequest, fronts.shared.limits)
        front = fronts.of(body.model)
        return await _respond(front, request, await chat_call(front, body, caller))

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        caller = _caller(fronts, request)
        body = await _body(request, ResponsesRequest, fronts.shared.limits)
        front = fronts.of(body.model)
        call = await responses_call(front, body, caller)
        wire = {"encode": to_named_event, "failure": call.failure, "done": b""}
        return await _respond(front, request, call, **wire)


def _add_token_routes(app: FastAPI, fronts: Fronts) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        _caller(fronts, request)
        body = await _body(request, TokenizeRequest, fronts.shared.limits)
        return json_response(await tokenize_answer(fronts.of(body.model), body))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        _caller(fronts, request)
        body = await _body(request, DetokenizeRequest, fronts.shared.limits)
        return json_response(detokenize_answer(fronts.of(body.model), body))


Call = ChatCall | CompletionCall | ResponsesCall


async def _respond(front: Front, request: Request, call: Call, **wire: Any) -> Response:
    """`wire` is how a stream is written, see `EventStream`."""
    if front.settings.enable_log_requests:
        log_request(request.scope["octavo.request_id"], call.job)
    if not call.stream:
        return json_response(await unless_gone(request.receive, call.answer()))
    return EventStream(
        call.job.start(front.client, front.tokenizer),
        call.chunks,
        grace=front.settings.submit_grace,
        request_id=request.scope["octavo.request_id"],
        **wire,
    )


async def _body(request: Request, schema: type[T], limits: RequestLimits) -> T:
    """The body, never more of it in memory than is allowed."""
    raw = bytearray()
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(limits.body_seconds) as patience:
            async for chunk in request.stream():
                patience.reschedule(clock() + limits.body_seconds)
                raw += chunk
                if len(raw) > limits.body_bytes:
                    raise BodyTooLarge(limits.body_bytes)
    except TimeoutError:
        raise BodyTooSlow(limits.body_seconds) from None
    return parse(bytes(raw), schema)


def _caller(fronts: Fronts, request: Request) -> str:
    return fronts.door.tenant(request.headers.get("authorization"))


def _model(front: Front, name: str) -> Model:
    lengths = [each.max_model_len for each in front.client.stats()]
    settings = front.settings
    parent = None
    if front.adapter_of(name):
        parent = settings.adapters[name] or settings.served_model_names[0]
    return Model(
        id=name,
        created=settings.created,
        root=settings.model_path or name,
        parent=parent,
        max_model_len=min(lengths, default=None),
        permission=[ModelPermission(id=f"modelperm-{name}", created=settings.created)],
    )


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the same shape as every other error."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    message = f"{what}: {error.detail}; GET / lists what is served"
    return failure_response(failure(error.status_code, message, headers=dict(error.headers or {})))
