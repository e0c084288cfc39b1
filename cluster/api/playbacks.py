"""Films for the dashboard's second tab: of a scene, of a server's own journal, of one that is sent.

They are made one after another, with bounds on all that is given and on how long it may take
(`octavo.cluster.playback.child`): the engines do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from fastapi import Request

from octavo.cluster.api.failures import BodyTooLarge, BodyTooSlow
from octavo.cluster.client import EngineClient
from octavo.cluster.playback.child import play_journal, play_scene
from octavo.cluster.playback.recorded import Part
from octavo.cluster.playback.scene import Scene
from octavo.scheduler.errors import InvalidRequest, QueueFull

MOST_WANTED = 8
MOST_SENT = 64 * 2**20  # bytes of a journal

T = TypeVar("T")


class Playbacks:
    """Raises `InvalidRequest` for what cannot be played, and `QueueFull` where too many wait for
    theirs. See `octavo.cluster.playback.film` for what is answered."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._wanted = 0

    async def scene(self, query: Mapping[str, str]) -> bytes:
        """A simulation."""
        scene = _read(query, Scene)
        async with self._turn():
            return await play_scene(scene)

    async def journal(self, client: EngineClient, replica: str, query: Mapping[str, str]) -> bytes:
        """What a replica records."""
        part = _read(query, Part)
        async with self._turn():
            return await client.debug_journal(replica, part)

    async def sent(self, request: Request, body_seconds: float) -> bytes:
        """A journal that is the request's body, of at most `MOST_SENT` bytes."""
        part = _read(request.query_params, Part)
        with self._place(), tempfile.NamedTemporaryFile(prefix="octavo-journal-") as file:
            await _receive(request, file.write, body_seconds)
            file.flush()
            async with self._lock:
                return await play_journal(Path(file.name), part, "the file")

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._wanted >= MOST_WANTED:
            raise QueueFull(f"{self._wanted} films are wanted already; try again later", 5)
        self._wanted += 1
        try:
            yield
        finally:
            self._wanted -= 1

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        with self._place():
            async with self._lock:
                yield


async def _receive(request: Request, write: Callable[[bytes], object], seconds: float) -> None:
    """The body, of which a piece must come every so many seconds."""
    clock, size = asyncio.get_running_loop().time, 0
    try:
        async with asyncio.timeout(seconds) as patience:
            async for chunk in request.stream():
                patience.reschedule(clock() + seconds)
                size += len(chunk)
                if size > MOST_SENT:
                    raise BodyTooLarge(MOST_SENT)
                write(chunk)
    except TimeoutError:
        raise BodyTooSlow(seconds) from None


def _read(query: Mapping[str, str], schema: type[T]) -> T:
    try:
        return msgspec.convert(dict(query), schema, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        given = f", got {query[name][:40]!r}" if name in query else ""
        raise InvalidRequest(name, f"{name or schema.__name__.lower()}: {what}{given}") from None
