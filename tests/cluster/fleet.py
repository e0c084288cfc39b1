"""Several engines of which any can be killed at any time: what failover is for, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from octavo.cluster.engine import Engine
from octavo.cluster.local import LocalClient, LocalWorkers
from octavo.cluster.picture import Look
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats
from octavo.cluster.streams import Streams
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.errors import EngineDead
from octavo.scheduler.plan import decode_plan
from octavo.scheduler.request import Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker
from tests.scheduler.simulation import VOCAB

CONFIG: dict[str, Any] = {
    "max_model_len": 256,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
}


class _Doomed(NullWorker):
    """Dies of a certain prompt."""

    def __init__(self, poison: list[int]) -> None:
        super().__init__(4, vocab_size=VOCAB, num_blocks=64)
        self._poison = poison

    def execute(self, raw: bytes) -> bytes | None:
        if any(add.tokens[: add.prompt_len] == self._poison for add in decode_plan(raw).add):
            raise EngineDead("it died of a request")
        return super().execute(raw)


class _Replica:
    """An engine with a step loop. Killed, it drops its requests as one does whose rank died."""

    def __init__(self, name: str, poison: list[int], **config: Any) -> None:
        self.name = name
        self.begun: set[str] = set()
        self.workers = LocalWorkers(lambda: _Doomed(poison))
        self.config = SchedulerConfig(**(CONFIG | config))

    async def start(self) -> None:
        scheduler = Scheduler(self.config, await self.workers.start())
        streams = Streams()
        clock = asyncio.get_running_loop().time
        self.engine = Engine(
            scheduler, self.workers, streams.deliver, clock=clock, begin=self.begun.update
        )
        self.client = LocalClient(self.engine, streams)
        self.loop = asyncio.create_task(self.engine.run())

    def kill(self) -> None:
        self.loop.cancel()


class Fleet:
    """`EngineClient`: the first replica that is up serves. `seen` are all submitted requests, with
    the replica's name. Replicas die of the prompt `poison`; one that dies by itself is replaced. To
    be entered with `async with`."""

    def __init__(self, poison: list[int] | None = None, **config: Any) -> None:
        self.seen: list[tuple[str, Request]] = []
        self._poison = poison or []
        self._config = config
        self._names = map(str, itertools.count())
        self._up: dict[str, _Replica] = {}
        self._dead: list[_Replica] = []
        self._where: dict[str, _Replica] = {}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._up):
            self.kill(name)
        for replica in self._dead:
            with contextlib.suppress(asyncio.CancelledError, EngineDead):
                await replica.loop
            await replica.workers.stop()

    async def grow(self) -> None:
        """One replica more."""
        replica = _Replica(next(self._names), self._poison, **self._config)
        await replica.start()
        self._up[replica.name] = replica

    def kill(self, name: str | None = None) -> None:
        """This replica, or the one that serves."""
        replica = self._up.pop(name or next(iter(self._up)))
        replica.kill()
        self._dead.append(replica)

    def running(self) -> int:
        """Requests that hold anything, on all replicas that are up."""
        return sum(len(each.engine.scheduler.live_requests) for each in self._up.values())

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        if not self._up:
            raise EngineDead("no replica is up")
        replica = self._where[request.id] = next(iter(self._up.values()))
        self.seen.append((replica.name, request))
        try:
            async with aclosing(replica.client.generate(request)) as events:
                async for event in events:
                    yield event
        except EngineDead as error:
            if self._up.pop(replica.name, None) is not None:
                self._dead.append(replica)
                await self.grow()
            blamed = replica.name if request.id in replica.begun else ""
            raise EngineDead(str(error), blamed) from error
        finally:
            del self._where[request.id]

    def abort(self, request_id: str, index: int) -> None:
        if (replica := self._where.get(request_id)) is not None:
            replica.client.abort(request_id, index)

    def stats(self) -> list[EngineStats]:
        return [stats for each in self._up.values() for stats in each.client.stats()]

    async def ensure_up(self) -> None:
        if (fault := self.fault()) is not None:
            raise EngineDead(fault)

    def fault(self) -> str | None:
        return None if self._up else "no replica is up"

    async def reset_prefix_cache(self) -> int:
        return len(self._up)

    async def debug_blocks(self) -> list[bytes]:
        return []

    async def debug_look(self, look: Look) -> bytes:
        return await self._up[look.replica].client.debug_look(look)

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        return await self._up[replica].client.debug_journal(replica, part)
