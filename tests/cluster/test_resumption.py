"""What an engine makes of a request that another one had begun, and what it says of those that it
begins itself."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from octavo.cluster.engine import Engine
from octavo.cluster.local import LocalWorkers
from octavo.cluster.streams import Streams
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker
from tests.cluster.fleet import CONFIG, Fleet
from tests.scheduler.simulation import VOCAB, expected, request


def test_a_resumed_request_is_measured_as_one_that_had_begun() -> None:
    async def main() -> None:
        async with Fleet() as fleet:
            await fleet.grow()
            item = request("r", [1, 2, 3, 4, 5], 20, temperature=1.0, seed=7, n=2)
            whole = [expected(item, index) for index in range(2)]
            moved = msgspec.structs.replace(item, resumed=[whole[0][:6], None])
            told = [(event.index, *event.tokens) async for event in fleet.generate(moved)]
            assert told == [(0, token) for token in whole[0][6:]]
            (stats,) = fleet.stats()
            measured = stats.measured
            assert measured.requests_resumed == 1 and measured.generation_tokens == 14
            assert sum(measured.time_to_first_token.counts) == 0, "another engine gave it"
            assert sum(measured.inter_token_latency.counts) == 13
            assert measured.request_generation_tokens.sum == 20
            assert measured.prompt_tokens == 0 and measured.prefix_cache_queries == 0

    asyncio.run(main())


def test_it_is_told_which_requests_begin_before_a_step_of_them_is_sent() -> None:
    told: list[str] = []

    class Watching(LocalWorkers):
        async def execute(self, plan: bytes) -> bytes:
            told.append("plan")
            return await super().execute(plan)

    async def main() -> None:
        workers = Watching(lambda: NullWorker(4, vocab_size=VOCAB, num_blocks=64))
        config: dict[str, Any] = CONFIG
        scheduler = Scheduler(SchedulerConfig(**config), await workers.start())
        streams = Streams()
        clock = asyncio.get_running_loop().time
        engine = Engine(scheduler, workers, streams.deliver, clock=clock, begin=told.extend)
        for name in "ab":
            engine.add(request(name, [1], 2))
        while scheduler.live_requests:
            await engine.step()
        assert told[:3] == ["a", "b", "plan"] and set(told[3:]) == {"plan"}
        await workers.stop()

    asyncio.run(main())
