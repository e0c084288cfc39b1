"""The same KV memory given out in four ways: what it holds, how many run at once, at what rate.

    python benchmarks/allocation.py [--sharegpt FILE] [--scale 0.25] [--requests 48]

`max`, `pow2` and `oracle` reserve memory at admission as Orca's variants do in the PagedAttention
paper (Kwon et al. 2023, section 6.1); `paged` gives out blocks as they are needed. The engine is
the real one, in this process, with the embedded model; answers have the lengths of the trace.

Scaled so that two cores can bear it, in minutes: ShareGPT's lengths (sums of up to 2,048 tokens),
the longest sequence that the model serves, and the block of 16 become a quarter, but the block
stays at 8 at least: 512 tokens and blocks of 8. The pool holds `--longest` (2) longest sequences:
memory has to be the limit, as in the paper, and on two cores computing is one from some 16
sequences on. Where memory is reserved there are no watermarks, as nothing grows: `max` gets all
that fit.

- Memory and requests at once: all requests come at once; means over the steps in which some wait
  for memory. Slots as figure 2 of the paper divides them, in percent of the pool: token states,
  reserved for tokens to come, never to be used; the rest is free, or too little for the next one.
  Waste is what will never be used, in percent of what requests hold.
- Sustained rate: Poisson arrivals, the same for all up to scale; the highest rate at which the mean
  over requests of latency / tokens of the answer is at most twice that of a request alone. Found by
  bisection between a sixteenth and five quarters of the rate at which the first run went through; a
  run ends early once its mean cannot come out below the limit. As runs are short, a rate a little
  above what goes through in the long run may still be sustained.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import lengths
from driver import embedded_model, make_request, random_tokens, say
from lengths import Length
from machine import describe, probe, row

from octavo.cluster.config import EngineConfig
from octavo.cluster.engine import Engine
from octavo.cluster.local import LocalWorkers
from octavo.scheduler.config import Allocation
from octavo.scheduler.introspection import MemoryUse, measure_memory
from octavo.scheduler.request import Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.worker import Worker

ALLOCATIONS: tuple[Allocation, ...] = ("max", "pow2", "oracle", "paged")
PAPER = {  # figure 13a: at once; figure 2: token states, reservation, internal waste, the rest
    "max": (7.0, 20.4, 13.3, 57.3, 8.9),
    "pow2": (9.8, 26.8, 17.9, 13.6, 41.6),
    "oracle": (13.6, 38.2, 25.2, 0.0, 36.6),
    "paged": (30.4, 96.3),  # all else is 3.7 together
}
LEAST_BLOCK = 8


@dataclass(slots=True)
class Watch:
    """What came of the requests of one engine: when each ended, and what memory held, step by step,
    while some waited. All times are by `clock`."""

    clock: Callable[[], float] = time.monotonic
    scheduler: Scheduler | None = None
    ended: dict[str, float] = field(default_factory=dict)
    memory: list[MemoryUse] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, events: Iterable[TokenEvent]) -> None:
        """The events of one step."""
        now = self.clock()
        for event in events:
            if event.error is not None:
                raise RuntimeError(f"request {event.request_id} failed: {event.error}")
            if event.finish is not None:
                self.ended[event.request_id] = now
                self.changed.set()
        assert self.scheduler is not None
        if self.scheduler.num_waiting:
            self.memory.append(measure_memory(self.scheduler))
            self.running.append(self.scheduler.num_running)


@asynccontextmanager
async def open_engine(
    config: EngineConfig,
    longest: int,
    watched: Callable[[Worker], Worker] = lambda worker: worker,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Engine, Watch]]:
    """An engine that is warm, and what watches it. `watched` is given the worker to look into."""
    workers, watch = (
        LocalWorkers(lambda: watched(Worker(config.worker_config()))),
        Watch(clock=clock),
    )
    capacity = await workers.start()
    watch.scheduler = Scheduler(config.scheduler_config(longest), capacity)
    engine = Engine(watch.scheduler, workers, watch.take, clock=clock)
    loop = asyncio.create_task(engine.run())
    try:
        await replay(engine, watch, [make_request("warm-up", random_tokens(64, "warm-up"), 8)], [0])
        yield engine, watch
    finally:
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop
        await workers.stop()


async def replay(
    engine: Engine,
    watch: Watch,
    requests: list[Request],
    arrivals: list[float],
    limit: float | None = None,
) -> float | None:
    """Sends each request at its time, in seconds from now; the mean of seconds a token of the
    answer, or None as soon as it is certain to be above `limit`. What still runs is then aborted.
    """
    start = watch.clock()
    due = {
        request.id: (start + arrival, answer_of(request))
        for request, arrival in zip(requests, arrivals, strict=True)
    }

    async def send() -> None:
        for request in requests:
            await asyncio.sleep(0)
            while (left := due[request.id][0] - watch.clock()) > 0:
                await asyncio.sleep(left)
            engine.add(request)

    sending = asyncio.create_task(send())
    while True:
        watch.changed.clear()
        now = watch.clock()
        total = sum(
            max(0.0, watch.ended.get(name, now) - arrived) / tokens
            for name, (arrived, tokens) in due.items()
        )
        if limit is not None and total > limit * len(requests):
            sending.cancel()
            for name in due:
                engine.abort(name)
            return None
        if len(due.keys() & watch.ended.keys()) == len(due):
            return total / len(requests)
        if engine.fault is not None:
            raise RuntimeError(engine.fault)
        with suppress(TimeoutError):
            await asyncio.wait_for(watch.changed.wait(), 0.5)


def answer_of(request: Request) -> int:
    assert request.sampling.max_tokens is not None
    return request.sampling.max_tokens


class Comparison:
    """The trace and the machine, alike for all ways of giving out memory."""

    def __init__(self, args: argparse.Namespace, chosen: list[Length]) -> None:
        self._args = args
        self._chosen = chosen
        self.longest = int(lengths.LONGEST * args.scale)
        self.block_size = max(LEAST_BLOCK, int(16 * args.scale))
        self.blocks = args.longest * self.longest // self.block_size
        source = random.Random(args.seed)
        gaps = [source.expovariate(1.0) for _ in chosen]
        self._arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]

    def open(self, allocation: Allocation) -> AbstractAsyncContextManager[tuple[Engine, Watch]]:
        low, high = (0.04, 0.08) if allocation == "paged" else (0.0, 0.0)
        config = EngineConfig(
            str(self._args.model),
            ("model",),
            max_model_len=self.longest,
            block_size=self.block_size,
            num_gpu_blocks_override=self.blocks + 1,
            max_num_queued_reqs=len(self._chosen) + 1,
            allocation=allocation,
            swap_space=self._args.swap_space,
            num_threads=self._args.threads,
            watermark_low=low,
            watermark_high=high,
        )
        return open_engine(config, self.longest)

    def requests(self, run: str) -> list[Request]:
        return [
            make_request(f"{run}/{i}", random_tokens(prompt, f"{run}/{i}"), answer)
            for i, (prompt, answer) in enumerate(self._chosen)
        ]

    async def unloaded(self, count: int) -> float:
        """Seconds a token of the answer where requests come one after another."""
        async with self.open("paged") as (engine, watch):
            found = []
            for request in self.requests("alone")[:count]:
                found.append(await replay(engine, watch, [request], [0.0]))
            return statistics.mean(each for each in found if each is not None)

    async def saturated(self, allocation: Allocation) -> tuple[Watch, float, int]:
        """What was seen while requests waited, the requests a second, and preemptions."""
        async with self.open(allocation) as (engine, watch):
            requests = self.requests("flood")
            start = time.monotonic()
            await replay(engine, watch, requests, [0.0] * len(requests))
            rate = len(requests) / (time.monotonic() - start)
            return watch, rate, engine.scheduler.counters.preemptions

    async def sustained(self, allocation: Allocation, limit: float, through: float) -> float:
        """The highest rate, in requests a second, whose latency is within `limit`; 0 where that of
        every one tried was not."""
        least = low = through / 16
        high = through * 5 / 4
        for turn in range(self._args.turns):
            rate = (low * high) ** 0.5
            async with self.open(allocation) as (engine, watch):
                arrivals = [arrival / rate for arrival in self._arrivals]
                found = await replay(engine, watch, self.requests(f"t{turn}"), arrivals, limit)
            told = "too slow" if found is None else f"{found * 1e3:.0f} ms a token"
            say(f"{allocation} at {rate:.2f} requests/s: {told}")
            low, high = (low, rate) if found is None else (rate, high)
        return low if low > least else 0.0


def memory_row(allocation: Allocation, watch: Watch, slots: int) -> str:
    def percent(name: str) -> float:
        return 100 * statistics.mean(float(getattr(use, name)) for use in watch.memory) / slots

    tokens, reserved, wasted = map(percent, ("token_slots", "reserved_slots", "wasted_slots"))
    rest = 100 - tokens - reserved - wasted
    waste = 100 * wasted / (tokens + reserved + wasted)
    ours = f"{tokens:.1f}", f"{reserved:.1f}", f"{wasted:.1f}", f"{rest:.1f}"
    at_once, *paper = PAPER[allocation]
    shown = " / ".join(f"{each:.1f}" for each in paper)
    return row(
        allocation, f"{statistics.mean(watch.running):.1f}", at_once, *ours, shown, f"{waste:.1f}"
    )


async def compare(args: argparse.Namespace, chosen: list[Length]) -> None:
    comparison = Comparison(args, chosen)
    slots = comparison.blocks * comparison.block_size
    print(describe())
    print(
        f"{comparison.blocks} blocks of {comparison.block_size} tokens, sequences of up to "
        f"{comparison.longest}, {len(chosen)} requests\n"
    )
    say("one request at a time")
    alone = await comparison.unloaded(args.unloaded)
    print(f"A request alone: {alone * 1e3:.1f} ms a token of its answer.\n")
    columns = "allocation", "at once", "paper", "token states, %", "reserved, %", "wasted, %"
    print(row(*columns, "rest, %", "paper, %", "waste of what is held, %"))
    print(row(*["---"] * 9))
    through: dict[Allocation, tuple[float, int]] = {}
    for allocation in args.allocations:
        say(f"{allocation}: all requests at once")
        watch, rate, preemptions = await comparison.saturated(allocation)
        if not watch.memory:
            raise SystemExit("no request had to wait for memory: ask for more --requests")
        through[allocation] = rate, preemptions
        print(memory_row(allocation, watch, slots), flush=True)
    print()
    names = "allocation", "all at once, requests/s", "preemptions", "sustained rate, requests/s"
    print(row(*names, f"times {args.allocations[0]}", "probe"))
    print(row(*["---"] * 6))
    rates: dict[Allocation, float] = {}
    for allocation in args.allocations:
        speed = probe(args.threads)
        rate, preemptions = through[allocation]
        rates[allocation] = await comparison.sustained(allocation, 2 * alone, rate)
        base = rates[args.allocations[0]]
        times = f"{rates[allocation] / base:.2f}" if base else "-"
        cells = f"{rate:.2f}", preemptions, f"{rates[allocation]:.2f}", times, speed
        print(row(allocation, *cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lengths.add_argument(parser, "sharegpt")
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--scale", type=float, default=0.25, help="of lengths and context")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--unloaded", type=int, default=16, help="requests sent one by one")
    parser.add_argument("--longest", type=int, default=2, help="longest sequences in the pool")
    parser.add_argument("--turns", type=int, default=5, help="of the bisection")
    parser.add_argument("--swap-space", type=float, default=0.25, help="GiB")
    parser.add_argument("--seed", type=int, default=0, help="of lengths and arrivals")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--allocations", nargs="+", choices=get_args(Allocation), default=ALLOCATIONS
    )
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    chosen = lengths.sample(
        "sharegpt", args.sharegpt, args.requests, scale=args.scale, seed=args.seed
    )
    say(lengths.describe("sharegpt", args.sharegpt, chosen, args.scale))
    asyncio.run(compare(args, chosen))


if __name__ == "__main__":
    main()
