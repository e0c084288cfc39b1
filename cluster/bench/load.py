"""Sends requests at their times and gathers the answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.client import ask
from octavo.cluster.bench.scrape import CacheWatch
from octavo.cluster.bench.target import Target, open_session


@dataclass(frozen=True, slots=True)
class Run:
    """`duration` in seconds from the first request to the last answer; `processor` is how many
    seconds of it this process computed."""

    answers: list[Answer]
    duration: float
    processor: float
    cache: CacheWatch


async def send_all(
    target: Target,
    bodies: Sequence[bytes],
    times: Sequence[float],
    *,
    max_concurrency: int | None = None,
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> Run:
    """`times` are seconds after the start. Answers are in the order of `bodies`."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    headers = {"Content-Type": "application/json", **target.headers}

    async def one(session: aiohttp.ClientSession, body: bytes) -> Answer:
        arrived = time.perf_counter()
        async with gate:
            answer = await ask(session, target.url, body, headers)
        answer.waited = answer.sent - arrived
        on_answer(answer)
        return answer

    watch = CacheWatch()
    async with open_session(target.verify) as session:
        with _uncollected():
            async with watch.over(session, f"{target.base}/metrics"):
                computed, start = time.process_time(), time.perf_counter()
                tasks = []
                for body, at in zip(bodies, times, strict=True):
                    rest = start + at - time.perf_counter()
                    if rest > 0:
                        await asyncio.sleep(rest)
                    tasks.append(asyncio.create_task(one(session, body)))
                answers = await asyncio.gather(*tasks)
                duration = time.perf_counter() - start
                computed = time.process_time() - computed
    return Run(list(answers), duration, computed, watch)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without pauses of the garbage collector, which would count as the server's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
