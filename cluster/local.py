"""An engine and its worker in this process: no Ray, no sockets.

Unit tests, `octavo bench`, the Python API and a GPU box without a cluster use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

from octavo.cluster.engine import Engine, Workers
from octavo.cluster.journal.recorder import Recorder, open_journal
from octavo.cluster.journal.settings import JournalSettings
from octavo.cluster.picture import Look
from octavo.cluster.playback.child import play_recorded
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats
from octavo.cluster.streams import Streams
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import EngineDead
from octavo.scheduler.request import Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.ahead import launcher_of
from octavo.workers.member import Member
from octavo.workers.progress import Tally

STUCK_SECONDS = 120.0  # the longest step of a large model on a CPU is far shorter


class LocalWorkers:
    """One rank on a thread of its own, so that planning and detokenizing overlap with computing.
    Where the rank runs ahead, another thread waits for the end of each step."""

    def __init__(self, make_worker: Callable[[], Member]) -> None:
        self._make_worker = make_worker
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-worker")
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-waiting")
        self._worker: Member | None = None

    async def start(self) -> Capacity:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def execute(self, plan: bytes) -> bytes:
        assert self._worker is not None, "execute() before start()"
        loop = asyncio.get_running_loop()
        launcher = launcher_of(self._worker)
        if launcher is None:
            result = await loop.run_in_executor(self._thread, self._worker.execute, plan)
        else:
            begun = await loop.run_in_executor(self._thread, launcher.begin, plan)
            await loop.run_in_executor(self._waiting, begun.wait)
            result = await loop.run_in_executor(self._thread, launcher.finish, begun)
        assert result is not None, "rank 0 answers every plan"
        return result

    def tallies(self) -> list[Tally]:
        return [] if self._worker is None else [self._worker.progress.tally]

    async def stop(self) -> None:
        self._waiting.shutdown(wait=True, cancel_futures=True)
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def _start(self) -> Capacity:
        worker = self._make_worker()
        worker.load()
        capacity = worker.allocate(worker.measure())
        self._worker = worker
        return capacity


class LocalClient:
    """`EngineClient` over an engine in this event loop. Made by `start`."""

    def __init__(
        self, engine: Engine, streams: Streams, journal: JournalSettings | None = None
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._journal = journal

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        self._streams.open(request)
        try:
            self._engine.add(request)
            async for event in self._streams.read(request.id):
                yield event
        finally:
            self._streams.close(request.id)
            self._engine.abort(request.id)  # nothing happens if it has ended

    async def ensure_up(self) -> None:
        if (fault := self.fault()) is not None:
            raise EngineDead(fault)

    def abort(self, request_id: str, index: int) -> None:
        if self._streams.give_up(request_id, index):
            self._engine.abort(request_id, index)

    def stats(self) -> list[EngineStats]:
        return [self._engine.stats("0")]

    def fault(self) -> str | None:
        waited = self._engine.seconds_since_step
        if self._engine.fault is None and waited > STUCK_SECONDS:
            return f"a step has been running for {waited:.0f} s"
        return self._engine.fault

    async def reset_prefix_cache(self) -> int:
        self._engine.reset_prefix_cache()
        return 1

    async def debug_blocks(self) -> list[bytes]:
        return [self._engine.debug_blocks()]

    async def debug_look(self, look: Look) -> bytes:
        return self._engine.debug_look(look)

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        return await play_recorded(self._journal, part)


class LocalEngine:
    """Owns workers, engine and step loop: `async with LocalEngine(...) as client`.

    `configure` gets the capacity that the workers found and gives the scheduler's settings. What it
    does is recorded where there is a `journal`.
    """

    def __init__(
        self,
        workers: Workers,
        configure: Callable[[Capacity], SchedulerConfig],
        journal: JournalSettings | None = None,
    ) -> None:
        self._workers = workers
        self._journal = journal
        self._recorder: Recorder | None = None
        self._configure = configure
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalClient:
        try:
            capacity = await self._workers.start()
            scheduler = Scheduler(self._configure(capacity), capacity)
            self._recorder = open_journal(self._journal, scheduler, time.monotonic())
        except BaseException:
            await self._workers.stop()
            raise
        streams = Streams()
        engine = Engine(
            scheduler,
            self._workers,
            streams.deliver,
            clock=time.monotonic,
            journal=self._recorder,
        )
        self._loop = asyncio.create_task(engine.run(), name="octavo-step-loop")
        return LocalClient(engine, streams, self._journal)

    async def __aexit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.cancel()
        # A fault was logged and given to every request when it happened.
        with contextlib.suppress(asyncio.CancelledError, EngineDead):
            await self._loop
        if self._recorder is not None:
            self._recorder.close(time.monotonic())
        await self._workers.stop()
