"""The scheduler's end of the step channel: broadcasts plans, gathers results and heartbeats.

Over ZeroMQ and not through Ray calls, which cost ten times as much a step. Lives on one asyncio
loop. Knows nothing of Ray, of models, or of what a plan says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from octavo.cluster.distributed.liveness import SILENCE_SECONDS, Liveness
from octavo.scheduler.errors import EngineDead, OutOfStep
from octavo.workers.channel import (
    HELLO,
    PLAN,
    STOP,
    Answer,
    Beat,
    Failed,
    Link,
    Missing,
    Ready,
    Stray,
    Upward,
)
from octavo.workers.curve import listen
from octavo.workers.progress import Tally

HELLO_SECONDS = 0.05
CHECK_SECONDS = 0.25
RESEND_SECONDS = 2.0  # a plan that a rank has not taken by then is sent again
BLAME_SECONDS = 2.0  # for Ray to say that a rank is dead
KEPT_PLANS = 64

_decoder = msgspec.msgpack.Decoder(Upward)


class StepChannel:
    """One group's channel. After a fault every call raises `EngineDead` with the same reason."""

    def __init__(
        self,
        node: str,
        world: int,
        *,
        silence: float = SILENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._clock = clock
        self._context = zmq.asyncio.Context()
        plain = cast(Any, zmq.Socket)  # a publisher never waits
        self._publish: zmq.Socket[Any] = self._context.socket(zmq.PUB, socket_class=plain)
        self._gather = self._context.socket(zmq.PULL)
        key = listen(self._publish, self._gather)
        plans = self._publish.bind_to_random_port(f"tcp://{node}")
        answers = self._gather.bind_to_random_port(f"tcp://{node}")
        self.link = Link(f"tcp://{node}:{plans}", f"tcp://{node}:{answers}", key)
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_PLANS)
        self._sent, self._sent_at = 0, 0.0
        self._ready: set[int] = set()
        self._all_ready = asyncio.Event()
        self._liveness = Liveness(world, clock(), silence=silence)
        self._dead = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.fault: str | None = None

    async def greet(self, timeout: float) -> None:
        """Returns once every rank hears the publisher. Raises `EngineDead` naming those that
        do not within `timeout` seconds."""
        self._tasks.append(asyncio.create_task(self._listen()))
        deadline = self._clock() + timeout
        while not self._all_ready.is_set():
            self._check_fault()
            if self._clock() > deadline:
                silent = sorted(set(range(self._world)) - self._ready)
                self.fail(f"rank(s) {silent} did not join the step channel within {timeout:g} s")
                continue
            self._broadcast(HELLO, 0, b"")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ready.wait(), HELLO_SECONDS)
        self._liveness.begin(self._clock())
        self._tasks.append(asyncio.create_task(self._watch()))

    async def execute(self, plan: bytes) -> bytes:
        """Rank 0's result of this plan. Several may be in flight; they are answered in order.

        Raises `EngineDead`, or `OutOfStep` where the workers' mirrors are at another step.
        """
        self._check_fault()
        self._sent += 1
        self._sent_at = self._clock()
        self._liveness.sent(self._sent_at)
        self._kept.append((self._sent, plan))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._sent, answer))
        self._broadcast(PLAN, self._sent, plan)
        return await answer

    async def died(self) -> str:
        """Waits for a fault and returns it."""
        await self._dead.wait()
        assert self.fault is not None
        return self.fault

    def fail(self, reason: str) -> None:
        """Ends the channel: the first reason stays."""
        if self.fault is not None:
            return
        self.fault = reason
        self._dead.set()
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(EngineDead(reason))

    def tallies(self) -> list[Tally]:
        """See `Liveness.tallies`."""
        return self._liveness.tallies()

    def describe(self, rank: int) -> str:
        """The rank with its process id and node, as far as known."""
        return self._liveness.describe(rank)

    async def close(self) -> None:
        """Tells the workers to stop and frees the sockets."""
        self.fail("the engine was stopped")
        self._broadcast(STOP, 0, b"")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=200)

    def _broadcast(self, kind: bytes, number: int, body: bytes) -> None:
        self._publish.send_multipart([kind, number.to_bytes(8, "big"), body])

    def _check_fault(self) -> None:
        if self.fault is not None:
            raise EngineDead(self.fault)

    async def _listen(self) -> None:
        while True:
            raw = await self._gather.recv()
            try:
                message = _decoder.decode(raw)
            except msgspec.MsgspecError as error:
                self.fail(f"a rank speaks another version of the step channel: {error}")
                return
            if 0 <= message.rank < self._world:
                self._take(message)

    def _take(self, message: Upward) -> None:
        match message:
            case Ready(rank):
                self._ready.add(rank)
                if len(self._ready) == self._world:
                    self._all_ready.set()
            case Beat():
                now = self._clock()
                self._liveness.beat(message, now)
                if message.received < self._sent and now - self._sent_at > RESEND_SECONDS:
                    self._resend(message.received + 1)
            case Missing(_, first):
                self._resend(first)
            case Answer(_, number, result):
                if (answer := self._answered(number)) is not None:
                    answer.set_result(result)
            case Stray(rank, number, expected, got):
                self._liveness.complained(rank, f"expected step {expected}, got step {got}")
                if rank == 0 and (answer := self._answered(number)) is not None:
                    answer.set_exception(OutOfStep(expected, got))
            case Failed(rank, reason):
                # A rank whose peer died fails too; the peer's death is the better reason.
                asyncio.get_running_loop().call_later(
                    0 if self._world == 1 else BLAME_SECONDS,
                    self.fail,
                    f"{self.describe(rank)} failed: {reason}",
                )

    def _answered(self, number: int) -> asyncio.Future[bytes] | None:
        if not self._waiting or self._waiting[0][0] != number:
            return None
        self._liveness.answered(self._clock())
        _, answer = self._waiting.popleft()
        return None if answer.done() else answer

    def _resend(self, first: int) -> None:
        """Ranks that have a plan already ignore its number."""
        if not self._kept or self._kept[0][0] > first:
            self.fail(f"plan {first} was lost and is no longer kept")
            return
        for number, plan in self._kept:
            if number >= first:
                self._broadcast(PLAN, number, plan)

    async def _watch(self) -> None:
        while self.fault is None:
            await asyncio.sleep(CHECK_SECONDS)
            if (reason := self._liveness.verdict(self._clock())) is not None:
                self.fail(reason)
