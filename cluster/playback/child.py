"""Has films made by a process of their own, of low priority and with a bound on its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.settings import JournalSettings
from octavo.cluster.journal.writer import previous
from octavo.cluster.playback.recorded import Part
from octavo.cluster.playback.scene import Scene
from octavo.scheduler.errors import InvalidRequest, RequestFailed

SECONDS = 60.0  # that it may take; it takes a few
NICE = 10


async def play_scene(scene: Scene) -> bytes:
    """Raises `InvalidRequest` where it cannot be, and `RequestFailed`."""
    return await _run("scene", given=msgspec.json.encode(scene))


async def play_journal(path: Path, part: Part, name: str | None = None) -> bytes:
    """The file at `path`, which goes by `name` where it is spoken of. Raises `InvalidRequest` where
    it cannot be played, and `RequestFailed`."""
    if part.before:
        path = previous(path)
    if not path.exists():
        raise JournalError(f"there is no journal {path} yet: no file was full so far")
    try:
        return await _run("journal", msgspec.json.encode(part).decode(), str(path))
    except InvalidRequest as error:
        raise JournalError(error.message.replace(str(path), name or str(path))) from None


async def play_recorded(journal: JournalSettings | None, part: Part) -> bytes:
    """What an engine records. Raises as `play_journal` does, also where it does not record."""
    if journal is None:
        raise JournalError("this server keeps no journal; octavo serve --journal FILE does")
    return await play_journal(journal.path, part)


async def _run(what: str, *arguments: str, given: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.cluster.playback", what, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each thread would reserve memory
    )
    with contextlib.suppress(OSError):  # it may have ended, or the system may not allow it
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    try:
        async with asyncio.timeout(SECONDS):
            made, said = await process.communicate(given)
    except TimeoutError:
        raise RequestFailed(f"it took longer than {SECONDS:g} s to play") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # closes its pipes
    if process.returncode == 1:
        raise InvalidRequest(what, said.decode(errors="replace").strip())
    if process.returncode:
        raise RequestFailed(f"the process that plays ended with status {process.returncode}")
    return made
