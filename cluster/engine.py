"""The step loop: schedule, execute, update. Knows neither Ray nor HTTP nor text.

    request ─ add ─▶ Scheduler ─ plan ─▶ Workers ─ result ─▶ Scheduler ─ events ─▶ emit

Plan k+1 goes out shortly before step k ends (`depth` plans in flight), so workers never wait for
Python and requests never wait for a plan that was made too early.
With nothing to do the loop sleeps on an event and uses no CPU.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from octavo.cluster.journal.recorder import Driven, Recorder
from octavo.cluster.observer import Observer
from octavo.cluster.pace import Pace
from octavo.cluster.picture import Look, Painter
from octavo.cluster.stats import EngineStats
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import EngineDead, OutOfStep
from octavo.scheduler.events import StepEvents
from octavo.scheduler.introspection import describe_blocks
from octavo.scheduler.plan import StepPlan, decode_result, encode
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.progress import Tally

logger = logging.getLogger(__name__)

Emit = Callable[[StepEvents], None]
Begin = Callable[[list[str]], None]
Clock = Callable[[], float]

INTERNAL = "the engine failed on an internal error"


class Workers(Protocol):
    """A group of ranks that executes plans in order: in this process, or as Ray actors."""

    async def start(self) -> Capacity:
        """Loads the model and agrees on the number of blocks. Raises with the reason."""

    async def execute(self, plan: bytes) -> bytes:
        """The encoded result of an encoded plan. Several may be in flight, answered in order.
        Raises `EngineDead` when a rank is gone and `OutOfStep` when one missed a plan."""

    def tallies(self) -> list[Tally]:
        """What each rank's steps took so far, by rank; it may be a second old."""

    async def stop(self) -> None:
        """Ends the group. May be called in any state, more than once."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan that was sent: how many tokens it computes, and when it left."""

    result: asyncio.Future[bytes]
    tokens: int
    sent: float


class Engine:
    """`emit` gets all events of a step in one call, `begin` the ids of requests that the workers
    are about to see for the first time. `clock` is monotonic, in seconds. A `journal` stands before
    the scheduler; who opened it closes it."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Workers,
        emit: Emit,
        *,
        clock: Clock,
        depth: int = 2,
        begin: Begin = lambda _: None,
        journal: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._journal = journal
        self._driven: Driven = scheduler if journal is None else journal
        self._workers = workers
        self._emit = emit
        self._begin = begin
        self._clock = clock
        self._depth = depth
        self._flights: deque[_Flight] = deque()
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._observer = Observer(scheduler)
        self._painter = Painter(scheduler, clock)
        self._fault: str | None = None
        self._last_step = clock()

    @property
    def fault(self) -> str | None:
        """Why no step can run any more, or None."""
        return self._fault

    @property
    def seconds_since_step(self) -> float:
        """How long a step has been under way since the last result; 0 when idle."""
        return self._clock() - self._last_step if self._flights else 0.0

    def add(self, request: Request) -> None:
        """Raises `NeverFits`, `QueueFull`, `InvalidRequest`, or `EngineDead`."""
        if self._fault is not None:
            raise EngineDead(self._fault)
        now = self._clock()
        self._driven.add(request, now)
        if not request.resumed:  # its first token came from another engine
            self._observer.arrived(request.id, now)
        self._wake.set()

    def abort(self, request_id: str, index: int | None = None) -> bool:
        """Frees at once what a request holds, or what its sample `index` does. False if that is
        not live."""
        found = self._driven.abort(request_id, index)
        self._observer.take_ended(self._clock())
        return found

    async def run(self) -> None:
        """Runs steps until cancelled. If the workers die, ends every live request with an abort
        event that says why, and raises `EngineDead`."""
        try:
            while True:
                await self.step()
        except asyncio.CancelledError:
            self._die("the engine was stopped")
            raise
        except EngineDead as error:
            self._die(str(error))
            raise
        except Exception as error:
            logger.exception("the step loop failed")
            self._die(INTERNAL)
            raise EngineDead(INTERNAL) from error

    async def step(self) -> None:
        """Has a plan executed, with the next one on its way before it ends, and takes the oldest
        result in. Waits for a request where there is nothing at all to do."""
        self._send_plans(1)
        if not self._flights:
            self._settle(idle=True)
            self._wake.clear()
            await self._wake.wait()
            self._last_step = self._clock()
            return
        self._settle()
        await self._hold()
        if not self._driven.awaits_result:
            self._send_plans(self._depth)
        flight = self._flights.popleft()
        try:
            raw = await flight.result
        except OutOfStep as gap:
            logger.warning("a worker missed a plan (%s); sending it every row again", gap)
            self._cancel_flights()
            self._send(self._driven.resync())
            return
        began = max(flight.sent, self._last_step)
        now = self._last_step = self._clock()
        result = decode_result(raw)
        # The result before may have been taken in late: then this one seems to come too soon.
        took = max(now - began, result.compute_seconds)
        self._painter.stepped(now, flight.tokens, took, result.compute_seconds)
        self._pace.observe(flight.tokens, result.compute_seconds)
        events = self._driven.update(result, now)
        self._observer.record(events, now)
        if events:
            self._emit(events)

    def reset_prefix_cache(self) -> None:
        """No later request finds what was computed before."""
        self._driven.reset_prefix_cache()

    def debug_blocks(self) -> bytes:
        """What lies in which block, as JSON: `octavo.scheduler.introspection.BlocksView`."""
        return msgspec.json.encode(describe_blocks(self.scheduler))

    def debug_look(self, look: Look) -> bytes:
        """The engine at a glance, see `octavo.cluster.picture`."""
        return self._painter.paint(look)

    def stats(self, replica: str) -> EngineStats:
        """A snapshot; `replica` is the name it goes by."""
        now, since = self._clock(), self.seconds_since_step
        stats = self._observer.snapshot(replica, self._fault, since, now)
        stats.ranks = self._workers.tallies()
        stats.journal = "" if self._journal is None else str(self._journal.path)
        return stats

    def _send_plans(self, limit: int) -> None:
        """Until so many are in flight, or nothing is left that does not wait for a result."""
        while len(self._flights) < limit:
            plan = self._driven.schedule(self._clock())
            self._log_preemptions()
            if plan is None:
                return
            if begun := self.scheduler.take_begun():
                self._begin(begun)
            self._send(plan)

    def _settle(self, *, idle: bool = False) -> None:
        """While the workers compute, nobody waits for what the journal makes of its notes."""
        if self._journal is not None:
            self._journal.settle(self._clock(), idle=idle)

    def _log_preemptions(self) -> None:
        for decision in self.scheduler.take_decisions():
            logger.info(
                "preempted request %s: %s (estimates: recompute %.1f ms, swap %.1f ms)",
                decision.request_id,
                decision.outcome,
                decision.recompute_seconds * 1e3,
                decision.swap_seconds * 1e3,
            )

    async def _hold(self) -> None:
        """Waits until the step under way is nearly done, so that the plan after it is fresh."""
        if len(self._flights) < self._depth:
            running = self._flights[0]
            began = max(running.sent, self._last_step)
            left = began + self._pace.hold(running.tokens) - self._clock()
            if left > 0:
                await asyncio.wait({running.result}, timeout=left)

    def _send(self, plan: StepPlan) -> None:
        result = asyncio.ensure_future(self._workers.execute(encode(plan)))
        tokens = sum(work.count for work in plan.work)
        self._flights.append(_Flight(result, tokens, self._clock()))

    def _cancel_flights(self) -> None:
        for flight in self._flights:
            flight.result.cancel()
        self._flights.clear()

    def _die(self, reason: str) -> None:
        self._fault = reason
        self._cancel_flights()
        lost = self.scheduler.live_requests
        for request_id in lost:
            self._driven.abort(request_id)
        self._settle(idle=True)
        if lost:
            aborted = [TokenEvent(name, [], Finish.ABORT, error=reason) for name in lost]
            self._emit(StepEvents(aborted))
