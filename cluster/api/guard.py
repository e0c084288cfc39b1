"""The outermost layer of the app: a request id and a deadline for each call, and no exception past
it.

A client's `X-Request-Id` is echoed where it is fit for a header; ids inside the server are always
its own, so two calls with the same header cannot meet.
"""

from __future__ import annotations

import re
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.cluster.api.deadline import Deadline
from octavo.cluster.api.failures import failure_of
from octavo.cluster.api.streaming import ClientGone, failure_response

_FIT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Guard:
    """ASGI middleware. Errors before the response has begun become OpenAI's error object. A
    response must have begun after `timeout` seconds; a stream, which has, knows the deadline."""

    def __init__(self, app: ASGIApp, timeout: float | None) -> None:
        self._app = app
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["octavo.request_id"] = request_id
        deadline = scope["octavo.deadline"] = Deadline(self._timeout)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                limit.lift()
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            async with deadline.hold() as limit:
                await self._app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):
            return
        except Exception as error:
            failed = failure_of(error, request_id)
            if not started:
                await failure_response(failed)(scope, receive, send_with_id)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            asked: str = value.decode("latin-1")
            if _FIT_ID.fullmatch(asked):
                return asked
    return uuid4().hex
