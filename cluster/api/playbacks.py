"""`POST /debug/simulation`: films for the dashboard's second tab, made by a process of their own.

One after another, of low priority, with bounds on all that a scene has and on how long it may
take: the engines do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping

import msgspec

from octavo.cluster.playback import Scene
from octavo.scheduler.errors import InvalidRequest, QueueFull, RequestFailed

SECONDS = 60.0  # that it may take; it takes a few
NICE = 10
MOST_WANTED = 8


class Playbacks:
    """Makes films of scenes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._wanted = 0

    async def play(self, query: Mapping[str, str]) -> bytes:
        """See `octavo.cluster.playback`. Raises `InvalidRequest` for what is no scene, and
        `QueueFull` where too many wait for theirs."""
        scene = _scene(query)
        if self._wanted >= MOST_WANTED:
            raise QueueFull(f"{self._wanted} simulations are wanted already; try again later", 5)
        self._wanted += 1
        try:
            async with self._turn:
                return await _run(msgspec.json.encode(scene))
        finally:
            self._wanted -= 1


def _scene(query: Mapping[str, str]) -> Scene:
    try:
        return msgspec.convert(dict(query), Scene, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        given = f", got {query[name][:40]!r}" if name in query else ""
        raise InvalidRequest(name, f"{name or 'scene'}: {what}{given}") from None


async def _run(scene: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "octavo.cluster.playback",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with contextlib.suppress(OSError):  # it may have ended, or the system may not allow it
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    try:
        async with asyncio.timeout(SECONDS):
            made, said = await process.communicate(scene)
    except TimeoutError:
        raise RequestFailed(f"the simulation took longer than {SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 1:
        raise InvalidRequest("scene", said.decode(errors="replace").strip())
    if process.returncode:
        raise RequestFailed(f"the simulation ended with status {process.returncode}")
    return made
