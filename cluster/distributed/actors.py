"""The central actor of a replica: scheduler, cache bookkeeping and step loop. Needs no GPU.

Child of the Serve replica and parent of the ranks: when one of them dies the rest is taken down,
and Serve brings a new replica with a new group.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.cluster.autoscaling import Load
from octavo.cluster.cli.sizes import show_capacity
from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.notices import Notices
from octavo.cluster.distributed.placement import Group
from octavo.cluster.distributed.ray_workers import RayWorkers
from octavo.cluster.distributed.replies import Replies
from octavo.cluster.distributed.wire import decode_request, encode_error
from octavo.cluster.engine import Engine
from octavo.cluster.journal.recorder import Recorder, open_journal
from octavo.cluster.picture import Look
from octavo.cluster.routing.route import Route, tokens_of
from octavo.cluster.stats import EngineStats
from octavo.scheduler.digest import Publisher
from octavo.scheduler.errors import EngineDead, OctavoError
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.actor import Build

logger = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.5
FAREWELL_SECONDS = 0.3  # for refusals and last events to leave the process

DONE = b""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """All that a replica needs to know. `max_model_len` is what the model serves in the end;
    `notices` is where a terminal listens, if one does."""

    config: EngineConfig
    build: Build
    max_model_len: int
    notices: str | None = None


def calm_collector() -> None:
    """Has Python's garbage collector pass over what is there now, and go through all the rest a
    hundred times as rarely. A full collection visits every token of every live request, 40 ms and
    more with a thousand of them, and finds nothing: a step leaves no cycles."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 100 * old)


class SchedulerActor:
    """Async actor; every method runs on one loop. Errors are returned as bytes, not raised: a
    refused request is no reason for a traceback in the logs."""

    def __init__(
        self, spec: ReplicaSpec, replica: str, group: Group | None, worker_id: str = ""
    ) -> None:
        self._spec = spec
        self._replica = replica
        self._worker_id = worker_id
        self._group = group
        self._notices = Notices(spec.notices, f"replica {replica}")
        self._workers: RayWorkers | None = None
        self._engine: Engine | None = None
        self._replies: Replies | None = None
        self._publisher: Publisher | None = None
        self._journal: Recorder | None = None
        self._routed: Counter[str] = Counter()
        self._hits_expected = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._dead = asyncio.Event()

    async def start(self) -> bytes:
        """Brings up the ranks and the step loop. `DONE`, or an encoded error."""
        config = self._spec.config
        self._workers = RayWorkers(
            self._spec.build,
            config.tensor_parallel_size,
            device=config.device,
            group=self._group,
            on_progress=self._notices.say,
        )
        try:
            capacity = await self._workers.start()
        except OctavoError as error:
            logger.error("replica %s cannot start: %s", self._replica, error)
            return encode_error(error)
        self._notices.say(show_capacity(capacity, self._spec.max_model_len))
        scheduler = Scheduler(config.scheduler_config(self._spec.max_model_len), capacity)
        try:
            settings = config.journal_settings(self._replica)
            self._journal = open_journal(settings, scheduler, time.monotonic())
        except OctavoError as error:
            logger.error("replica %s cannot start: %s", self._replica, error)
            return encode_error(error)
        replies = Replies(self._replica, self._abort, time.monotonic)
        self._engine = Engine(
            scheduler,
            self._workers,
            replies.emit,
            clock=time.monotonic,
            begin=replies.begin,
            journal=self._journal,
        )
        self._replies = replies
        if scheduler.config.enable_prefix_caching:
            self._publisher = Publisher(scheduler.cache, scheduler.config.revision)
        calm_collector()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._report())]
        return DONE

    async def generate(self, raw: bytes, reply_to: str, route: Route) -> bytes:
        """Serves one encoded request, its events going to the mailbox `reply_to`. Returns when the
        last one was sent, `DONE` or an encoded error; being cancelled aborts the request. `route`
        is how it came here."""
        engine, replies = self._started
        if (fault := self._fault()) is not None:
            return encode_error(EngineDead(fault, self._replica))
        request = decode_request(raw)
        try:
            engine.add(msgspec.structs.replace(request, arrived=time.monotonic()))
        except OctavoError as error:
            return encode_error(error)
        self._routed[route.reason] += 1
        self._hits_expected += route.cached
        ended = replies.open(request, reply_to, tokens_of(request) - route.cached)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            engine.abort(request.id)
            raise
        finally:
            replies.close(request.id)
        fault = self._fault()
        return DONE if fault is None else encode_error(EngineDead(fault, self._replica))

    async def abort(self, samples: list[tuple[str, int]]) -> None:
        """Frees what these samples, (request id, index), hold. Nothing happens for those that are
        not live, or not here."""
        engine, replies = self._started
        for request_id, index in samples:
            engine.abort(request_id, index)
            replies.give_up(request_id, index)

    async def attach(self, reply_to: str, unknown: list[str]) -> None:
        """An ingress listens at `reply_to`; to be repeated within its lease. Of the
        replicas in `unknown` it does not know what they hold."""
        _, replies = self._started
        replies.attach(reply_to, self._replica not in unknown)

    async def reset_prefix_cache(self) -> None:
        """See `Engine.reset_prefix_cache`."""
        self._started[0].reset_prefix_cache()

    async def debug_blocks(self) -> bytes:
        """See `Engine.debug_blocks`."""
        return self._started[0].debug_blocks()

    async def debug_look(self, look: Look) -> bytes:
        """See `Engine.debug_look`."""
        return self._started[0].debug_look(look)

    async def fault(self) -> str | None:
        """Why no step can run, or None."""
        return self._fault()

    async def died(self) -> str:
        """Waits until no step can run any more, and until all who wait were told. Returns why."""
        await self._dead.wait()
        return self._fault() or "the engine was stopped"

    async def load(self) -> dict[str, float]:
        """What autoscaling goes by: `octavo.cluster.autoscaling.Load`."""
        return msgspec.structs.asdict(Load.of(self._stats()))

    async def stop(self) -> None:
        """Tells every ingress that nothing more comes from here, and ends the ranks in order."""
        if self._replies is not None:
            stats = self._stats()
            stats.fault = stats.fault or "the replica was stopped"
            self._replies.snapshot(stats)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._journal is not None:
            self._journal.close(time.monotonic())
        if self._workers is not None:
            await self._workers.stop()

    @property
    def _started(self) -> tuple[Engine, Replies]:
        assert self._engine is not None and self._replies is not None, "start comes first"
        return self._engine, self._replies

    def _abort(self, request_id: str) -> None:
        self._started[0].abort(request_id)

    def _fault(self) -> str | None:
        """The ranks' death comes first: an idle engine does not notice it."""
        assert self._workers is not None
        return self._workers.fault or self._started[0].fault

    async def _run(self) -> None:
        engine, replies = self._started
        assert self._workers is not None
        stepping = asyncio.ensure_future(engine.run())
        dying = asyncio.ensure_future(self._workers.died())
        try:
            await asyncio.wait({stepping, dying}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({stepping}, timeout=FAREWELL_SECONDS)
        finally:
            stepping.cancel()
            dying.cancel()
            await asyncio.gather(stepping, dying, return_exceptions=True)
        reason = self._fault() or "the engine ended"
        logger.error("replica %s is dead: %s", self._replica, reason)
        self._notices.say(f"{reason}; a new group takes over", "warning")
        replies.snapshot(self._stats())
        await self._workers.stop()
        await asyncio.sleep(FAREWELL_SECONDS)
        self._dead.set()

    def _stats(self) -> EngineStats:
        stats = self._started[0].stats(self._replica)
        stats.fault = self._fault()
        stats.worker_id = self._worker_id
        stats.backlog_tokens = self._started[1].backlog
        stats.measured.routed = dict(self._routed)
        stats.measured.prefix_hits_expected = self._hits_expected
        return stats

    async def _report(self) -> None:
        _, replies = self._started
        while True:
            if self._publisher is not None:
                replies.publish(self._publisher)
            replies.snapshot(self._stats())
            await asyncio.sleep(SNAPSHOT_SECONDS)
