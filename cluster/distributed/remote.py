"""The front's client over Serve replicas: control by Serve calls, data by one mailbox.

A request is one unary Serve call that lasts as long as the request, so Serve routes it, counts it,
cancels it, and fails it when its replica dies. Tokens do not come back by that call but by the
mailbox: one message a step for all requests, ten times cheaper than a stream each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from octavo.cluster.distributed.mailbox import Inbox
from octavo.cluster.distributed.wire import Tokens, decode_error, decode_message, encode
from octavo.cluster.stats import EngineStats
from octavo.cluster.streams import Streams
from octavo.scheduler.errors import EngineDead, OctavoError, QueueFull, RequestFailed
from octavo.scheduler.request import Request, TokenEvent

logger = logging.getLogger(__name__)

ATTACH_SECONDS = 3.0
FRESH_SECONDS = 5.0  # a replica that sends no snapshot for so long does not count
LOST_SECONDS = 5.0  # for the last tokens, once the call has ended


@dataclass(frozen=True, slots=True)
class _Heard:
    stats: EngineStats
    at: float


class RemoteClient:
    """`EngineClient` on the running asyncio loop. `start` first, `stop` last."""

    def __init__(self, replicas: DeploymentHandle[Any], node: str) -> None:
        self._replicas = replicas
        self._inbox = Inbox(node)
        self._streams = Streams()
        self._heard: dict[str, _Heard] = {}
        self._last_fault: str | None = None
        self._live: set[str] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._attach())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inbox.close()

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """See `EngineClient.generate`."""
        self._streams.open(request.id)
        call = self._replicas.generate.remote(encode(request), self._inbox.address)
        self._live.add(request.id)
        watch = asyncio.create_task(self._watch(request.id, call))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        ended = False
        try:
            async for event in self._streams.read(request.id):
                ended = event.finish is not None
                yield event
        finally:
            if not ended:  # closed early, or failed: either way nobody wants the rest
                call.cancel()  # type: ignore[no-untyped-call]
            self._live.discard(request.id)
            self._streams.close(request.id)

    def stats(self) -> list[EngineStats]:
        oldest = time.monotonic() - FRESH_SECONDS
        self._heard = {name: heard for name, heard in self._heard.items() if heard.at >= oldest}
        return [heard.stats for heard in self._heard.values()]

    def fault(self) -> str | None:
        """None if at least one replica could run a step now."""
        if self.stats():
            return None
        last = self._last_fault
        return "no replica is up" + (f"; the last one's reason: {last}" if last else "")

    async def _watch(self, request_id: str, call: Any) -> None:
        """Turns the end of the call into the end of the stream, if tokens do not do it first."""
        try:
            error = await _outcome(call)
        except asyncio.CancelledError:
            return
        if error is None:
            if request_id not in self._live:
                return
            await asyncio.sleep(LOST_SECONDS)
            error = RequestFailed("the replica finished but its last tokens did not arrive")
        self._streams.fail(request_id, error)

    async def _listen(self) -> None:
        while True:
            try:
                message = decode_message(await self._inbox.receive())
            except msgspec.MsgspecError:
                logger.warning("dropped a message that is not ours")
                continue
            if isinstance(message, Tokens):
                self._streams.deliver(message.events)
            else:
                self._hear(message.stats)

    def _hear(self, stats: EngineStats) -> None:
        """A replica that says it is dead is on its way out: it counts no more."""
        if stats.fault is None:
            self._heard[stats.replica] = _Heard(stats, time.monotonic())
        else:
            self._heard.pop(stats.replica, None)
            self._last_fault = stats.fault

    async def _attach(self) -> None:
        """New replicas must learn of this ingress, and the old ones that it still lives."""
        while True:
            try:
                response = self._replicas.broadcast("attach", self._inbox.address)
                await response.results_async(timeout_s=ATTACH_SECONDS, return_exceptions=True)
            except Exception as error:  # whatever it is, the next attempt may do
                logger.info("no replica was reached: %s: %s", type(error).__name__, error)
            await asyncio.sleep(ATTACH_SECONDS if self._heard else 0.2)


async def _outcome(call: Any) -> OctavoError | None:
    try:
        refusal = await call
    except BackPressureError:
        return QueueFull("all replicas are busy and the queue before them is full")
    except DeploymentUnavailableError:
        return EngineDead("no replica is up")
    except RayActorError:
        return EngineDead("the replica that served the request died")
    except (RayError, RayServeException) as error:
        return RequestFailed(f"the call to the replica failed: {type(error).__name__}")
    return decode_error(refusal) if refusal else None
