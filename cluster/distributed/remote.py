"""The front's client over Serve replicas: control by Serve calls, data by one mailbox.

A request is one unary Serve call that lasts as long as the request, so Serve routes it, counts it,
cancels it, and fails it when its replica dies. Tokens do not come back by that call but by the
mailbox: one message a step for all requests, ten times cheaper than a stream each.

A request ends with its replica, in `EngineDead`: `octavo.cluster.failover` carries it on. A
replica's death is known from what comes first: its own word, the end of its connection or of a
call, or its silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from octavo.cluster.distributed.mailbox import Inbox
from octavo.cluster.distributed.rollcall import RollCall
from octavo.cluster.distributed.start_failures import start_failure
from octavo.cluster.distributed.wire import (
    Begun,
    Held,
    Message,
    Snapshot,
    Taken,
    Tokens,
    decode_error,
    decode_message,
    encode,
)
from octavo.cluster.picture import Look
from octavo.cluster.playback.child import SECONDS as PLAYING_SECONDS
from octavo.cluster.playback.recorded import Part
from octavo.cluster.routing.names import names_of
from octavo.cluster.routing.route import Route, tokens_of
from octavo.cluster.routing.routing import Routing
from octavo.cluster.stats import EngineStats
from octavo.cluster.streams import Streams
from octavo.scheduler.errors import EngineDead, OctavoError, QueueFull, RequestFailed
from octavo.scheduler.request import Request, TokenEvent

logger = logging.getLogger(__name__)

ATTACH_SECONDS = 3.0
LONELY_SECONDS = 0.2
CONTROL_SECONDS = 10.0  # for every replica to answer the same question
JOURNAL_SECONDS = PLAYING_SECONDS + CONTROL_SECONDS
LOST_SECONDS = 5.0  # for the last tokens, once the call has ended
UNTAKEN_SECONDS = 20.0  # in Serve's hands, which may know only replicas that are to be avoided
CHECK_SECONDS = 0.25
HANG_UP_SECONDS = 0.02  # to read what came before
ROUSE_SECONDS = 10.0
NO_REPLICA = "no replica is up"


@dataclass(slots=True)
class _Submitted:
    """A live request: when it was sent, the replica that it was meant for, the one that said that
    it has taken it, whether it said that it runs it, and whether it was lost since."""

    at: float
    chosen: str = ""
    replica: str = ""
    begun: bool = False
    lost: bool = False

    @property
    def blamed(self) -> str:
        """The replica, where its death may be the request's doing."""
        return self.replica if self.begun else ""


class RemoteClient:
    """`EngineClient` on the running asyncio loop. `start` first, `stop` last."""

    def __init__(self, replicas: DeploymentHandle[Any], node: str) -> None:
        self._replicas = replicas
        self._inbox = Inbox(node)
        self._streams = Streams()
        self._roll = RollCall()
        self._routing = Routing()
        self._live: dict[str, _Submitted] = {}
        self._ways: dict[int, str] = {}  # replicas by the connections that their mail comes by
        self._given_up: list[tuple[str, int]] = []
        self._gave_up = asyncio.Event()
        self._lonely = asyncio.Event()
        self._watches: set[asyncio.Task[None]] = set()
        self._rousing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        work = [self._listen(), self._attach(), self._tell_given_up()]
        work += [self._heed_silence(), self._heed_hang_ups()]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        if self._rousing is not None:
            self._tasks.append(self._rousing)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inbox.close()

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """See `EngineClient.generate`."""
        self._streams.open(request)
        now = time.monotonic()
        route = self._route(request, now)
        submitted = self._live[request.id] = _Submitted(now, route.chosen)
        call = self._replicas.generate.remote(encode(request), self._inbox.address, route)
        watch = asyncio.create_task(self._watch(request.id, call, submitted))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        try:
            async for event in self._streams.read(request.id):
                yield event
        except EngineDead as error:
            raise EngineDead(error.message, submitted.blamed) from error
        finally:
            del self._live[request.id]
            self._routing.ended(request.id)
            if not self._streams.close(request.id):  # nobody wants the rest
                call.cancel()  # type: ignore[no-untyped-call]

    async def ensure_up(self) -> None:
        """See `EngineClient.ensure_up`. It does not wait: a replica may come later."""
        if (fault := self.fault()) is None:
            return
        if self._rousing is None or self._rousing.done():
            self._rousing = asyncio.create_task(self._rouse())
        raise EngineDead(fault)

    def abort(self, request_id: str, index: int) -> None:
        """See `EngineClient.abort`."""
        if self._streams.give_up(request_id, index):
            self._given_up.append((request_id, index))
            self._gave_up.set()

    def stats(self) -> list[EngineStats]:
        return self._roll.stats(time.monotonic())

    def fault(self) -> str | None:
        """None if at least one replica could run a step now."""
        if self.stats():
            return None
        last = self._roll.last_fault
        return NO_REPLICA + (f"; the last one's reason: {last}" if last else "")

    async def reset_prefix_cache(self) -> int:
        """See `EngineClient.reset_prefix_cache`."""
        return len(await self._ask_all("reset_prefix_cache"))

    async def debug_blocks(self) -> list[bytes]:
        """See `EngineClient.debug_blocks`."""
        return await self._ask_all("debug_blocks")

    async def debug_look(self, look: Look) -> bytes:
        """See `EngineClient.debug_look`. Serve has no way to one replica: all are asked, and the
        others have nothing to say. Where one of them is just dying, that is no matter."""
        for answer in await self._ask_each("debug_look", look):
            if answer and not isinstance(answer, BaseException):
                return bytes(answer)
        raise EngineDead(f"replica {look.replica} did not answer debug_look")

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        """See `EngineClient.debug_journal`."""
        for answer in await self._ask_each("debug_journal", replica, part, seconds=JOURNAL_SECONDS):
            if isinstance(answer, BaseException):
                continue
            film, error = answer
            if error:
                raise decode_error(error)
            if film:
                return bytes(film)
        raise EngineDead(f"replica {replica} did not answer debug_journal")

    def _route(self, request: Request, now: float) -> Route:
        able = [each.replica for each in self._roll.stats(now)]
        decision = self._routing.route(request.id, tokens_of(request), names_of(request), able)
        avoided = tuple(self._roll.avoided(now))
        return Route(avoided, decision.replica, decision.cached, decision.reason)

    async def _ask_all(self, method: str) -> list[Any]:
        """Every replica's answer. Raises `EngineDead` where one is missing."""
        answers = await self._ask_each(method)
        good = [each for each in answers if not isinstance(each, BaseException)]
        expected = max(len(answers), len(self.stats()))
        if len(good) < expected:
            raise EngineDead(f"only {len(good)} of {expected} replicas answered {method}")
        return good

    async def _ask_each(
        self, method: str, *arguments: Any, seconds: float = CONTROL_SECONDS
    ) -> list[Any]:
        """Every replica's answer, or why there is none. Raises `EngineDead` where there is no
        answer at all."""
        try:
            response = self._replicas.broadcast(method, *arguments)
            answers: list[Any] = await response.results_async(
                timeout_s=seconds, return_exceptions=True
            )
        except (RayError, RayServeException, TimeoutError) as error:
            raise EngineDead(f"no replica answered {method}: {type(error).__name__}") from error
        return answers

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

    async def _watch(self, request_id: str, call: Any, submitted: _Submitted) -> None:
        """Turns the end of the call into the end of the stream, if tokens do not do it first."""
        error = await _outcome(call, submitted)
        if error is None:
            if request_id not in self._live:
                return
            await asyncio.sleep(LOST_SECONDS)
            error = EngineDead("the replica finished but its last tokens did not arrive")
        elif isinstance(error, EngineDead) and error.replica:
            self._roll.bury(error.replica, error.message, time.monotonic())
            self._lose_all_on(error.replica, error.message)
        elif isinstance(error, EngineDead | QueueFull):
            self._routing.suspect(submitted.replica or submitted.chosen)
        self._streams.fail(request_id, error)

    async def _listen(self) -> None:
        while True:
            try:
                letter = await self._inbox.receive()
                self._take(decode_message(letter.body), letter.way)
            except msgspec.MsgspecError:
                logger.warning("dropped a message that is not ours")

    def _take(self, message: Message, way: int) -> None:
        match message:
            case Tokens(events):
                self._streams.deliver(events)
            case Taken(replica, request_id):
                self._ways[way] = replica
                if (submitted := self._live.get(request_id)) is not None:
                    submitted.replica = replica
                    self._routing.taken(request_id, replica)
            case Begun(request_ids):
                for request_id in request_ids:
                    if (submitted := self._live.get(request_id)) is not None:
                        submitted.begun = True
            case Snapshot(stats):
                self._ways[way] = stats.replica
                now = time.monotonic()
                if not self._roll.hear(stats, now):
                    self._lose_all_on(stats.replica, stats.fault or "")
                elif not self._roll.is_buried(stats.replica):
                    requests = stats.running + stats.waiting
                    self._routing.hear(stats.replica, stats.backlog_tokens, requests, now)
            case Held(replica, digest):
                if not self._roll.is_buried(replica):
                    self._routing.learn(replica, digest)

    def _lose_all_on(self, replica: str, reason: str) -> None:
        """Ends the requests that a replica has taken, and gives it no more."""
        self._routing.forget(replica)
        for request_id, submitted in self._live.items():
            if submitted.replica == replica:
                self._lose(request_id, submitted, reason)
        if not self.stats():
            self._lonely.set()

    def _lose(self, request_id: str, submitted: _Submitted, reason: str) -> None:
        """Once: a reader that is slow must not find the same news over and over."""
        if not submitted.lost:
            submitted.lost = True
            self._streams.fail(request_id, EngineDead(reason))

    async def _heed_silence(self) -> None:
        """A node that is gone says nothing, and Ray may take long to notice. A request that nobody
        takes may wait for a replica that Serve was told to avoid."""
        now = time.monotonic()
        while True:
            before = now
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            if now - before > 4 * CHECK_SECONDS:
                continue  # it was this process that heard nothing; there is mail to read
            for replica in self._roll.silent(now):
                self._lose_all_on(replica, f"nothing is heard of replica {replica}")
            for request_id, submitted in self._live.items():
                if not submitted.replica and now - submitted.at > UNTAKEN_SECONDS:
                    self._routing.suspect(submitted.chosen)
                    self._lose(request_id, submitted, "no replica took the request")

    async def _heed_hang_ups(self) -> None:
        """The system closes a dead process's connections, long before Ray knows of it."""
        while True:
            way = await self._inbox.hung_up()
            await asyncio.sleep(HANG_UP_SECONDS)
            if (replica := self._ways.pop(way, None)) is not None:
                self._roll.hang_up(replica, time.monotonic())
                self._lose_all_on(replica, f"replica {replica} has hung up")

    async def _rouse(self) -> None:
        """Has a call wait at Serve for a while: that starts a replica where there is none left, and
        keeps it from being given up."""
        await self._learn_why()
        call = self._replicas.rouse.remote(Route(tuple(self._roll.avoided(time.monotonic()))))
        try:
            async with asyncio.timeout(ROUSE_SECONDS):
                await call
        except Exception as error:  # whatever it is, who waits for a replica asks again
            logger.info("no replica was roused: %s: %s", type(error).__name__, error)
        finally:
            call.cancel()  # type: ignore[no-untyped-call]

    async def _learn_why(self) -> None:
        try:
            if reason := await asyncio.to_thread(start_failure, self._replicas):
                self._roll.last_fault = reason
        except Exception as error:  # whatever it is, the next attempt may do
            logger.info("Serve did not say why: %s: %s", type(error).__name__, error)

    async def _attach(self) -> None:
        """New replicas must learn of this ingress, and the old ones that it still lives."""
        while True:
            try:
                unknown = self._routing.unknown()
                response = self._replicas.broadcast("attach", self._inbox.address, unknown)
                await response.results_async(timeout_s=ATTACH_SECONDS, return_exceptions=True)
            except Exception as error:  # whatever it is, the next attempt may do
                logger.info("no replica was reached: %s: %s", type(error).__name__, error)
            await self._rest()

    async def _rest(self) -> None:
        """Shorter while no replica is known: whoever waits for one waits for the next attempt."""
        if not self.stats():
            await asyncio.sleep(LONELY_SECONDS)
            return
        self._lonely.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._lonely.wait()


async def _outcome(call: Any, submitted: _Submitted) -> OctavoError | None:
    """How a call ended. What was not raised by the replica's own code is the end of the replica, or
    of the way to it; `EngineDead.replica` is set where it is certain to be the former."""
    try:
        refusal = await call
    except BackPressureError:
        return QueueFull("all replicas are busy and the queue before them is full")
    except ActorDiedError:
        return EngineDead("the replica that served the request died", submitted.replica)
    except RayActorError:
        return EngineDead("the replica that served the request cannot be reached")
    except RayTaskError as error:
        return RequestFailed(f"the call to the replica failed: {type(error).__name__}")
    except (RayError, RayServeException, asyncio.CancelledError) as error:
        return EngineDead(f"the replica did not end the request: {type(error).__name__}")
    except Exception as error:  # whatever it is, whoever waits must be told
        return RequestFailed(f"the replica was not called: {type(error).__name__}")
    return decode_error(refusal) if refusal else None
