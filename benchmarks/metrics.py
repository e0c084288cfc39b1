"""What a scrape of `/metrics` costs, with 256 requests running and as many waiting.

    python benchmarks/metrics.py [--running 256]

The scheduler is real and its worker computes nothing. A snapshot is taken where the engine is,
twice a second in a cluster; the text is written where the front is, between the tokens of all
streams, which wait as long. Both are processor time. Over HTTP it is the time by the clock of a
client in the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from driver import Driver, make_request, random_tokens
from machine import describe, probe, row

from octavo.cluster.api.app import create_app
from octavo.cluster.api.metrics import render_metrics
from octavo.cluster.api.server import HttpServer
from octavo.cluster.api.settings import Address, FrontSettings
from octavo.cluster.observer import Observer
from octavo.cluster.stats import EngineStats
from octavo.scheduler.config import SchedulerConfig
from octavo.workers.null import NullWorker

PORT = 18_437
STEPS = 200


class Replicas:
    """Of an `EngineClient`, what a scrape asks for."""

    def __init__(self, observer: Observer, count: int) -> None:
        self._observer = observer
        self._count = count

    def stats(self) -> list[EngineStats]:
        return [self._observer.snapshot("0", None, 0.0, time.monotonic())] * self._count


def loaded(running: int) -> Observer:
    """An engine in the middle of its work."""
    blocks = running * 32
    config = SchedulerConfig(
        1024, max_num_seqs=running, max_num_batched_tokens=8192, max_num_queued_reqs=2 * running
    )
    driver = Driver(NullWorker(config.block_size, num_blocks=blocks), config)
    observer = Observer(driver.scheduler)
    for number in range(2 * running):
        name = f"r{number}"
        driver.add([make_request(name, random_tokens(64, name), 400)])
        observer.arrived(name, time.monotonic())
    for _ in range(STEPS):
        observer.record(driver.step(), time.monotonic())
    assert driver.scheduler.num_running == driver.scheduler.num_waiting == running
    return observer


def milliseconds(work: Callable[[], Any], clock: Callable[[], float], rounds: int) -> str:
    """The median, and the least."""
    taken = []
    for _ in range(rounds):
        began = clock()
        work()
        taken.append((clock() - began) * 1e3)
    return f"{statistics.median(taken):.2f}, {min(taken):.2f}"


async def over_http(replicas: Replicas, rounds: int) -> str:
    settings = FrontSettings("", ("m",))
    server = HttpServer(create_app(replicas, settings, tokenizer=Silent()), Address("", PORT))  # type: ignore[arg-type]
    server.start()
    url = f"http://127.0.0.1:{PORT}/metrics"

    def scrape() -> bytes:
        with urllib.request.urlopen(url) as answer:
            return answer.read()

    try:
        return await asyncio.to_thread(milliseconds, scrape, time.perf_counter, rounds)
    finally:
        await server.stop()


class Silent:
    """No tokenizer is needed for a scrape."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=51)
    args = parser.parse_args()
    observer = loaded(args.running)
    print(describe())
    print(row("replicas", "snapshot, ms", "text, ms", "over HTTP, ms", "KB", "probe"))
    print(row(*["---"] * 6))
    for count in args.replicas:
        replicas = Replicas(observer, count)
        stats = {"m": replicas.stats()}
        snapshot = milliseconds(replicas.stats, time.thread_time, args.rounds)
        text = milliseconds(lambda: render_metrics(stats), time.thread_time, args.rounds)  # noqa: B023
        http = asyncio.run(over_http(replicas, args.rounds))
        size = len(render_metrics(stats)) / 1e3
        print(row(count, snapshot, text, http, f"{size:,.0f}", probe(1)))


if __name__ == "__main__":
    main()
