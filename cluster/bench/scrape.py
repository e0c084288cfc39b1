"""The server's own figures during a run, from its Prometheus page, where it has one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable

import aiohttp

SECONDS_BETWEEN = 1.0
PATIENCE = aiohttp.ClientTimeout(total=5.0)

USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""Gauges of the share of the cache that requests hold, 0 to 1, by server."""
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
QUERIES = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")
HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)", re.M)


class CacheWatch:
    """What `/metrics` said before, during and after a run; all None where it says nothing. A server
    of several replicas counts the fullest for the peak, and all of them for the rest."""

    def __init__(self) -> None:
        self.peak_usage: float | None = None
        self.preemptions: float | None = None
        self.hit_rate: float | None = None

    @contextlib.asynccontextmanager
    async def over(self, session: aiohttp.ClientSession, url: str) -> AsyncIterator[None]:
        """Watches for the length of the block."""
        before = await self._look(session, url)
        watching = asyncio.create_task(self._watch(session, url)) if before else None
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        if before:
            self._compare(before, await self._look(session, url))

    async def _watch(self, session: aiohttp.ClientSession, url: str) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN)
            await self._look(session, url)

    async def _look(self, session: aiohttp.ClientSession, url: str) -> dict[str, list[float]]:
        try:
            async with session.get(url, timeout=PATIENCE) as response:
                if response.status != 200:
                    return {}
                samples = read_samples(await response.text(errors="replace"))
        except (TimeoutError, aiohttp.ClientError, OSError):
            return {}
        usage = _first(samples, USAGE)
        if usage:
            self.peak_usage = max(self.peak_usage or 0.0, *usage)
        return samples

    def _compare(self, before: dict[str, list[float]], after: dict[str, list[float]]) -> None:
        grown = [_growth(before, after, names) for names in (PREEMPTIONS, QUERIES, HITS)]
        self.preemptions, queries, hits = grown
        if queries and hits is not None:
            self.hit_rate = hits / queries


def read_samples(text: str) -> dict[str, list[float]]:
    """Values by name, one for each set of labels. Names as Ray spells them, with `_` for `:`, are
    found under the other spelling too."""
    found: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        name = re.sub(r"^(?:ray_)?(vllm|sglang)_", r"\1:", name)
        with contextlib.suppress(ValueError):
            number = float(value)
            found.setdefault(name, []).append(number)
    return found


def _first(samples: dict[str, list[float]], names: Iterable[str]) -> list[float]:
    return next((samples[name] for name in names if name in samples), [])


def _growth(
    before: dict[str, list[float]], after: dict[str, list[float]], names: Iterable[str]
) -> float | None:
    then, now = _first(before, names), _first(after, names)
    return sum(now) - sum(then) if now else None
