"""Several engine requests of one call, followed at once.

Each is followed by one task from start to end, so a generator is opened, read and closed in one
place; leaving the `async with` closes all, which aborts what still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from octavo.cluster.api.transcript import Delta, Transcript
from octavo.cluster.client import EngineClient
from octavo.scheduler.errors import RequestFailed, error_of
from octavo.scheduler.request import Finish, Request


async def follow(
    client: EngineClient, request: Request, transcripts: Sequence[Transcript]
) -> AsyncGenerator[tuple[int, Delta], None]:
    """What a client may see of each sample of one request, which has one transcript for each.

    A sample is given up at its stop string, while the others go on.
    """
    live = set(range(len(transcripts)))
    begun = False
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            if event.finish in (Finish.ERROR, Finish.ABORT):
                raise error_of(event.error or f"the engine ended it with {event.finish}")
            if not begun or event.prompt_logprobs is not None:
                for transcript in transcripts:
                    transcript.heed_prompt(event)
                begun = True
            delta = transcripts[event.index].feed(event)
            if delta.finish:
                live.remove(event.index)
                if event.finish is None and live:
                    client.abort(request.id, event.index)
            if delta or event.tokens:  # of half a character too: a client sees that it was made
                yield event.index, delta
            if not live:
                return
    raise RequestFailed("the engine ended the stream without a finish reason")


class Generation:
    """All sequences of a call, as `(sequence number, delta)` in the order they come.

    `transcripts` are those of the first request's samples, then of the second's, and so on. Raises
    the first error of any request; the others are then closed with the `async with`.
    """

    def __init__(
        self, client: EngineClient, requests: Sequence[Request], transcripts: Sequence[Transcript]
    ) -> None:
        self.transcripts = transcripts
        self._client = client
        self._requests = requests
        self._queue: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue()
        self._first: tuple[int, Delta | Exception] | None = None
        self._running = len(transcripts)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        first = 0
        for request in self._requests:
            self._tasks.append(asyncio.create_task(self._pump(first, request)))
            first += request.sampling.n
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accepted(self, grace: float) -> None:
        """Waits until the engine has answered anything, or `grace` seconds; raises a refusal."""
        try:
            async with asyncio.timeout(grace):  # `wait_for` can swallow a cancellation (3.11)
                self._first = await self._queue.get()
        except TimeoutError:
            return
        if isinstance(self._first[1], Exception):
            raise self._first[1]

    async def whole(self) -> list[Delta]:
        """Each sequence's deltas put together, once all have ended."""
        joined = [Delta() for _ in self.transcripts]
        texts: list[list[str]] = [[] for _ in self.transcripts]
        async for number, delta in self:
            texts[number].append(delta.text)
            joined[number].tokens += delta.tokens
            joined[number].parts += delta.parts
            joined[number].finish = delta.finish
        for number, parts in enumerate(texts):
            joined[number].text = "".join(parts)
        return joined

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        if self._first is not None:
            (number, item), self._first = self._first, None
        elif self._running:
            number, item = await self._queue.get()
        else:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        if item.finish:
            self._running -= 1
        return number, item

    async def _pump(self, first: int, request: Request) -> None:
        """Follows a request whose samples are the sequences from `first` on."""
        own = self.transcripts[first : first + request.sampling.n]
        try:
            async with aclosing(follow(self._client, request, own)) as deltas:
                async for index, delta in deltas:
                    self._queue.put_nowait((first + index, delta))
        except Exception as error:
            self._queue.put_nowait((first, error))
