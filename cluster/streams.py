"""Fans the one stream of a step's events out to the requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from octavo.scheduler.errors import EngineDead, OctavoError, RequestFailed
from octavo.scheduler.request import Finish, TokenEvent


class Streams:
    """Queues by request id, all in one event loop. Bounded by the requests' own lengths: a queue
    never holds more events than its request has tokens left."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[TokenEvent | OctavoError]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def deliver(self, events: Iterable[TokenEvent]) -> None:
        """Events of requests that nobody listens to any more are dropped."""
        for event in events:
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)

    def fail(self, request_id: str, error: OctavoError) -> None:
        """Ends one stream with an exception, after what was delivered before."""
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(error)

    def open(self, request_id: str) -> None:
        """Starts to collect events. Open before the request is sent, so that none is missed."""
        assert request_id not in self._queues
        self._queues[request_id] = asyncio.Queue()

    def close(self, request_id: str) -> None:
        self._queues.pop(request_id, None)

    async def read(self, request_id: str) -> AsyncGenerator[TokenEvent, None]:
        """Events until the one with `finish`, which is the last. Raises what `fail` was given,
        `RequestFailed` for a request that an internal fault ended, `EngineDead` for one that was
        dropped with its engine."""
        queue = self._queues[request_id]
        while True:
            event = await queue.get()
            if isinstance(event, OctavoError):
                raise event
            if event.finish is Finish.ERROR:
                raise RequestFailed(event.error or "the request failed")
            if event.finish is Finish.ABORT:
                raise EngineDead(event.error or "the engine dropped the request")
            yield event
            if event.finish is not None:
                return
