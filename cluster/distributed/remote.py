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
CONTROL_SECONDS = 10.0  # for every replica to answer the same question
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
        self._given_up: list[tuple[str, int]] = []
        self._gave_up = asyncio.Event()
        self._watches: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        work = (self._listen(), self._attach(), self._tell_given_up())
        self._tasks = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inbox.close()

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """See `EngineClient.generate`."""
        self._streams.open(request)
        call = self._replicas.generate.remote(encode(request), self._inbox.address)
        self._live.add(request.id)
        watch = asyncio.create_task(self._watch(request.id, call))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        try:
            async for event in self._streams.read(request.id):
                yield event
        finally:
            self._live.discard(request.id)
            if not self._streams.close(request.id):  # nobody wants the rest
                call.cancel()  # type: ignore[no-untyped-call]

    def abort(self, request_id: str, index: int) -> None:
        """See `EngineClient.abort`."""
        if self._streams.give_up(request_id, index):
            self._given_up.append((request_id, index))
            self._gave_up.set()

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

    async def reset_prefix_cache(self) -> int:
        """See `EngineClient.reset_prefix_cache`."""
        return len(await self._ask_all("reset_prefix_cache"))

    async def debug_blocks(self) -> list[bytes]:
        """See `EngineClient.debug_blocks`."""
        return await self._ask_all("debug_blocks")

    async def _ask_all(self, method: str) -> list[Any]:
        """Every replica's answer. Raises `EngineDead` where one is missing."""
        try:
            response = self._replicas.broadcast(method)
            answers = await response.results_async(
                timeout_s=CONTROL_SECONDS, return_exceptions=True
            )
        except (RayError, RayServeException, TimeoutError) as error:
            raise EngineDead(f"no replica answered {method}: {type(error).__name__}") from error
        good = [each for each in answers if not isinstance(each, BaseException)]
        expected = max(len(answers), len(self.stats()))
        if len(good) < expected:
            raise EngineDead(f"only {len(good)} of {expected} replicas answered {method}")
        return good

    async def _tell_given_up(self) -> None:
        """Serve offers no way to the one replica that has a request, so all are told; what is given
        up meanwhile goes into the next message. Where one is lost, the request's end frees all."""
        while True:
            await self._gave_up.wait()
            self._gave_up.clear()
            samples, self._given_up = self._given_up, []
            try:
                response = self._replicas.broadcast("abort", samples)
                await response.results_async(timeout_s=ATTACH_SECONDS, return_exceptions=True)
            except Exception as error:  # whatever it is, the next message may do
                logger.info("samples were not given up: %s: %s", type(error).__name__, error)

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
