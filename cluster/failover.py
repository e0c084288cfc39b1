"""Requests that outlive the replica they run on: each is resubmitted with what it has generated.

Wraps an `EngineClient` whose requests end with `EngineDead` when their replica dies, and is one
itself, so that the front never notices. The tokens drawn after a move are those that would have
been drawn without it (`Request.resumed`), so a stream goes on where it was: nothing lost, nothing
twice.

Each attempt has an id of its own: what a dead replica still had to say belongs to no live request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from octavo.cluster.client import EngineClient
from octavo.cluster.picture import Look
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats
from octavo.scheduler.errors import EngineDead, QueueFull, RequestFailed
from octavo.scheduler.request import Request, TokenEvent

logger = logging.getLogger(__name__)

MOST_DEATHS = 3  # of replicas in a row that ran it, without a token: it may be the cause
PAUSE_SECONDS = 0.02  # before the first attempt after a loss; twice as long each time
LONGEST_PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.1


class Course:
    """How far a request has come, over all its attempts."""

    def __init__(self, request: Request) -> None:
        self.live = set(request.live_samples)
        self.attempts = 0
        self.deaths = 0  # since the last token
        self.pauses = 0  # since the last token
        self.waited = 0.0  # seconds for a replica, since the last token
        self._request = request
        self._given: list[list[int]] = [[] for _ in range(request.sampling.n)]

    @property
    def name(self) -> str:
        """The id of the attempt under way, or of the next one."""
        name = self._request.id
        return f"{name}~{self.attempts}" if self.attempts else name

    @property
    def generated(self) -> int:
        """Tokens of all samples so far."""
        return sum(map(len, self._given))

    @property
    def suspect(self) -> bool:
        """Whether one more death is one too many."""
        return self.deaths == MOST_DEATHS - 1

    def attempt(self) -> Request:
        """What to submit now. Beams, and prompts that are only scored, give nothing before their
        end, and begin anew."""
        if not self.attempts:
            return self._request
        sampling = self._request.sampling
        begun = self.generated > 0 and sampling.beam_width is None
        resumed = [
            given.copy() if index in self.live else None for index, given in enumerate(self._given)
        ]
        return msgspec.structs.replace(
            self._request, id=self.name, resumed=resumed if begun else []
        )

    def take(self, event: TokenEvent) -> bool:
        """Notes an event of the attempt under way and gives it the request's own id. False where it
        repeats what was told before."""
        if event.index not in self.live:
            return False
        event.request_id = self._request.id
        self._given[event.index] += event.tokens
        if event.finish is not None:
            self.live.remove(event.index)
        self.deaths = self.pauses = 0
        self.waited = 0.0
        return True

    def give_up(self, index: int) -> None:
        """Nobody wants more of one sample."""
        self.live.discard(index)


class Failover:
    """`EngineClient` over another one. A request that was lost waits `patience` seconds, until its
    next token, for a replica that takes it; time on a replica does not count.

    A request that replica after replica dies with, without a token between, may be what kills them:
    it fails after `MOST_DEATHS`. Others run beside it. So that they are not blamed, requests that
    may not lose another replica are tried one after another, and whoever gets a token is cleared.
    """

    def __init__(
        self,
        engines: EngineClient,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._patience = patience
        self._clock = clock
        self._courses: dict[str, Course] = {}
        self._alone = asyncio.Lock()

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """See `EngineClient.generate`. Raises `EngineDead` where no replica took the request in
        time, and `RequestFailed` for one that replicas die of."""
        course = self._courses[request.id] = Course(request)
        try:
            while course.live:
                try:
                    async with aclosing(self._attempt(course)) as events:
                        async for event in events:
                            yield event
                    return
                except (EngineDead, QueueFull) as error:
                    self._lose(request.id, course, error)
                await self._recover(course)
        finally:
            del self._courses[request.id]

    async def ensure_up(self) -> None:
        """See `EngineClient.ensure_up`. Waits as long as a request that was lost would."""
        await self._wait_for_replica(self._clock())

    def abort(self, request_id: str, index: int) -> None:
        """See `EngineClient.abort`."""
        if (course := self._courses.get(request_id)) is not None:
            course.give_up(index)
            self._engines.abort(course.name, index)

    def stats(self) -> list[EngineStats]:
        return self._engines.stats()

    def fault(self) -> str | None:
        return self._engines.fault()

    async def reset_prefix_cache(self) -> int:
        return await self._engines.reset_prefix_cache()

    async def debug_blocks(self) -> list[bytes]:
        return await self._engines.debug_blocks()

    async def debug_look(self, look: Look) -> bytes:
        return await self._engines.debug_look(look)

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        return await self._engines.debug_journal(replica, part)

    async def _attempt(self, course: Course) -> AsyncGenerator[TokenEvent, None]:
        async with contextlib.AsyncExitStack() as turn:
            if suspect := course.suspect:
                await turn.enter_async_context(self._alone)
            async with aclosing(self._engines.generate(course.attempt())) as events:
                async for event in events:
                    if not course.take(event):
                        continue
                    if suspect:
                        await turn.aclose()
                        suspect = False
                    yield event

    def _lose(self, name: str, course: Course, error: EngineDead | QueueFull) -> None:
        """Prepares the next attempt, or raises where there must be none."""
        if isinstance(error, QueueFull) and not course.attempts:
            raise error  # it was never let in
        if isinstance(error, EngineDead) and error.replica:
            course.deaths += 1
        if course.deaths >= MOST_DEATHS:
            raise RequestFailed(
                f"{course.deaths} replicas in a row died while they served it, the last one for "
                f"this reason: {error}"
            ) from error
        if course.waited > self._patience:
            raise error
        course.attempts += 1
        logger.info("request %s goes on elsewhere after %d tokens", name, course.generated)

    async def _recover(self, course: Course) -> None:
        """Waits a little, and until a replica is up. Raises `EngineDead` when that takes too
        long."""
        began = self._clock() - course.waited
        await asyncio.sleep(min(PAUSE_SECONDS * 2**course.pauses, LONGEST_PAUSE_SECONDS))
        course.pauses += 1
        await self._wait_for_replica(began)
        course.waited = self._clock() - began

    async def _wait_for_replica(self, began: float) -> None:
        while True:
            try:
                return await self._engines.ensure_up()
            except EngineDead:
                if self._clock() - began >= self._patience:
                    raise
            await asyncio.sleep(POLL_SECONDS)
