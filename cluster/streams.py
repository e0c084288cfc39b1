"""Fans the one stream of a step's events out to the requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from octavo.scheduler.errors import EngineDead, OctavoError, error_of
from octavo.scheduler.request import Finish, Request, TokenEvent


class _Stream:
    """One request's events on their way to its reader. `live` are the samples that have not ended,
    `cut` whether one was given up. None in the queue only wakes the reader, to look again."""

    def __init__(self, samples: Iterable[int]) -> None:
        self.queue: asyncio.Queue[TokenEvent | OctavoError | None] = asyncio.Queue()
        self.live = set(samples)
        self.cut = False


class Streams:
    """Streams by request id, all in one event loop. Bounded by the requests' own lengths: a queue
    never holds more events than its request has tokens left."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def deliver(self, events: Iterable[TokenEvent]) -> None:
        """Events of requests that nobody listens to any more are dropped."""
        for event in events:
            if (stream := self._streams.get(event.request_id)) is not None:
                stream.queue.put_nowait(event)

    def fail(self, request_id: str, error: OctavoError) -> None:
        """Ends one stream with an exception, after what was delivered before."""
        if (stream := self._streams.get(request_id)) is not None:
            stream.queue.put_nowait(error)

    def open(self, request: Request) -> None:
        """Starts to collect events. Open before the request is sent, so that none is missed."""
        assert request.id not in self._streams
        self._streams[request.id] = _Stream(request.live_samples)

    def give_up(self, request_id: str, index: int) -> bool:
        """Ends one sample of a request, as if its last event had been read. False if it has ended
        already, or its request has."""
        stream = self._streams.get(request_id)
        if stream is None or index not in stream.live:
            return False
        stream.live.remove(index)
        stream.cut = True
        stream.queue.put_nowait(None)
        return True

    def close(self, request_id: str) -> bool:
        """Whether every sample's last event had been read; if not, the engine may be at work."""
        stream = self._streams.pop(request_id)
        return not stream.live and not stream.cut

    async def read(self, request_id: str) -> AsyncGenerator[TokenEvent, None]:
        """Events until no sample is live. Raises what `fail` was given, `error_of` for a
        request that ended with an error, `EngineDead` for one that was dropped with its
        engine."""
        stream = self._streams[request_id]
        while stream.live:
            event = await stream.queue.get()
            if event is None:
                continue
            if isinstance(event, OctavoError):
                raise event
            if event.finish is Finish.ERROR:
                raise error_of(event.error or "the request failed")
            if event.finish is Finish.ABORT:
                raise EngineDead(event.error or "the engine dropped the request")
            if event.index not in stream.live:
                continue  # given up meanwhile
            if event.finish is not None:
                stream.live.remove(event.index)
            yield event
