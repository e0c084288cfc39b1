"""Answers over ASGI that stop the moment the client is gone.

A client that hangs up is seen by listening for its disconnect beside the work, for streams and for
whole answers alike; leaving the work's `async with` then aborts it in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.cluster.api.answers import DONE, to_event, to_json
from octavo.cluster.api.deadline import Deadline
from octavo.cluster.api.failures import Failure, failure_of
from octavo.cluster.api.generation import Generation

T = TypeVar("T")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled and awaited when the client hangs up.

    The request's body must have been read. Raises `ClientGone`.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events of one generation.

    A refusal that comes within `grace` seconds is raised, to become an ordinary error response;
    what fails later becomes one error event, after which the stream ends without `[DONE]`.
    Endpoints differ in how an event, a failure and the end are written.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        chunks: Callable[[Generation], AsyncGenerator[Any, None]],
        *,
        grace: float,
        request_id: str,
        encode: Callable[[Any], bytes] = to_event,
        failure: Callable[[Failure], bytes] = lambda failed: to_event(failed.answer),
        done: bytes = DONE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._chunks = chunks
        self._grace = grace
        self._request_id = request_id
        self._encode = encode
        self._failure = failure
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._run(send, scope["octavo.deadline"]))

    async def _run(self, send: Send, deadline: Deadline) -> None:
        async with self._generation as generation:
            await generation.accepted(self._grace)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            try:
                async with deadline.hold(), aclosing(self._chunks(generation)) as chunks:
                    async for chunk in chunks:
                        await _send_event(send, self._encode(chunk))
                last = self._done
            except ClientGone:
                raise
            except Exception as error:
                last = self._failure(failure_of(error, self._request_id))
        await _send_event(send, last, more=False)  # whose reader may be slow: the engine is free


def json_response(
    answer: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(to_json(answer), status, headers, media_type="application/json")


def failure_response(failed: Failure) -> Response:
    return json_response(failed.answer, failed.status, failed.headers)


async def _send_event(send: Send, event: bytes, *, more: bool = True) -> None:
    try:
        await send({"type": "http.response.body", "body": event, "more_body": more})
    except OSError:
        raise ClientGone from None
