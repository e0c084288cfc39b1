"""What planning costs: `schedule()` + `update()` of the real scheduler, without any model.

As many sequences as a row says are kept running; each that ends is replaced by a new one with a
prompt of its own, as under steady load. A step has eight tokens a sequence at every size. The pool
is full of content that could still be found, as after hours of serving, so that every block that is
taken has to be forgotten first. The workers' answers are made up, and making them is not counted.

Wall time is what counts; the processor's time beside it tells whether other programs were in the
way, and the time that the garbage collector took in the slowest hundredth of the steps whether it
is what made them slow. The probe is a list of 100,000 squares.

All sizes are there at once and take turns of `TURN` steps, of which the first few are not counted:
a machine that slows down slows all of them.

With `--cold` the processor's caches are emptied before each of the two calls, as a model's step in
between empties them, so that rows cost the same whether or not all of them would fit: what then
grows with their number is the work.

    python benchmarks/scheduler_cost.py
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

from machine import describe, row, seconds

from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.plan import StepPlan, StepResult, decode_plan, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler

SIZES = (  # sequences, blocks of the pool with 16 tokens each
    (256, 20_000),
    (256, 1_000_000),
    (512, 125_000),
    (1024, 250_000),
    (2048, 500_000),
    (4096, 1_000_000),
)
WARM_UP = 600  # steps; longer than any answer, so that ends and arrivals are spread evenly
VOCAB = range(50_000)
TURN, SETTLE = 25, 5
FLOOD_BYTES = 256 * 2**20

Add = Callable[[Request, float], None]


class Load:
    """Requests with prompts of 64 to 1,024 tokens and answers of 64 to 512, seeded. They come in by
    `add`, where it is not the scheduler's own."""

    def __init__(self, scheduler: Scheduler, target: int, add: Add | None = None) -> None:
        self._scheduler = scheduler
        self._add = add or scheduler.add
        self._target = target
        self._random = random.Random(0)
        self._count = 0

    def refill(self) -> None:
        while self._scheduler.num_running + self._scheduler.num_waiting < self._target:
            self._count += 1
            prompt = self._random.choices(VOCAB, k=self._random.randint(64, 1024))
            sampling = SamplingParams(
                max_tokens=self._random.randint(64, 512), ignore_eos=True, seed=0
            )
            self._add(Request(f"r{self._count}", prompt, sampling), 0.0)


class Collector:
    """`seconds` that garbage collections have taken so far. A `calm` one does not look at what was
    there before the load, and goes through all the rest a hundred times as rarely: a step leaves
    nothing that only a collection could free."""

    def __init__(self, calm: bool) -> None:
        self.seconds = 0.0
        self.calm = calm
        self._began = 0.0
        gc.callbacks.append(self.note)
        if calm:
            young, middle, old = gc.get_threshold()
            gc.set_threshold(young, middle, 100 * old)

    def note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began


@dataclass(slots=True)
class Costs:
    """Milliseconds of every step: schedule + update by the clock, by the processor and what of it
    is garbage collection; and coding a plan for the wire and back. `rows` were computed."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    collecting: list[float] = field(default_factory=list)
    coding: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def fill(pool: BlockPool) -> None:
    """Every block has content that can be found, and none is held."""
    table = [pool.take() for _ in range(pool.free)]
    for block in table:
        pool.publish(block, block.to_bytes(16, "little"))
    pool.release(table)


def answer(plan: StepPlan, source: random.Random) -> StepResult:
    sampled = sum(work.sample for work in plan.work)
    return StepResult(plan.step, source.choices(VOCAB, k=sampled))


class Flood:
    """Drives everything else out of the processor's caches, if it is to."""

    def __init__(self, cold: bool) -> None:
        self._water = bytearray(FLOOD_BYTES) if cold else bytearray()

    def pour(self) -> None:
        self._water[:] = bytes(len(self._water))


class Engine:
    """A scheduler that always has `running` sequences, and the `costs` of its steps so far."""

    def __init__(self, running: int, blocks: int, flood: Flood) -> None:
        config = SchedulerConfig(
            max_model_len=2048,
            max_num_seqs=running,
            max_num_batched_tokens=8 * running,
            max_num_queued_reqs=running,
        )
        self.running, self.blocks = running, blocks
        self.costs = Costs()
        self._scheduler = Scheduler(config, Capacity(blocks, config.block_size))
        self._load, self._source = Load(self._scheduler, running), random.Random(1)
        self._flood = flood
        fill(self._scheduler.cache.pool)

    def step(self, collector: Collector, count: bool) -> None:
        self._load.refill()
        if count:
            self._flood.pour()
        collecting = collector.seconds
        wall, processor = time.perf_counter(), time.thread_time()
        plan = self._scheduler.schedule(0.0)
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        collecting = collector.seconds - collecting
        assert plan is not None
        coding = time.perf_counter()
        decode_plan(encode(plan))
        coding = time.perf_counter() - coding
        result = answer(plan, self._source)
        if count:
            self._flood.pour()
        collecting = collector.seconds - collecting
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        self._scheduler.update(result, 0.0)
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        collecting = collector.seconds - collecting
        self._scheduler.take_ended()
        if count:
            costs = self.costs
            costs.wall.append(wall * 1e3)
            costs.processor.append(processor * 1e3)
            costs.collecting.append(collecting * 1e3)
            costs.coding.append(coding * 1e3)
            costs.rows.append(len(plan.work))


def measure(engines: list[Engine], steps: int, collector: Collector) -> None:
    for engine in engines:
        for _ in range(WARM_UP):
            engine.step(collector, count=False)
        print(f"{engine.running:,} sequences run", file=sys.stderr, flush=True)
    if collector.calm:
        gc.collect()
        gc.freeze()
    for _ in range(-(-steps // (TURN - SETTLE))):
        for engine in engines:
            for step in range(TURN):
                engine.step(collector, count=step >= SETTLE)
    gc.unfreeze()


def show(engine: Engine) -> str:
    costs = engine.costs
    median = statistics.median(costs.wall)
    slow = min(statistics.quantiles(costs.wall, n=100)[98], max(costs.wall))  # of few, a guess
    both = zip(costs.collecting, costs.wall, strict=True)
    collected = [collecting for collecting, wall in both if wall >= slow]
    return row(
        f"{engine.running:,}",
        f"{engine.blocks:,}",
        f"{statistics.mean(costs.rows):,.0f}",
        f"{median:.2f}",
        f"{1e3 * median / statistics.mean(costs.rows):.2f}",
        f"{slow:.2f}",
        f"{statistics.median(collected):.2f}",
        f"{statistics.median(costs.processor):.2f}",
        f"{statistics.median(costs.coding):.2f}",
    )


def show_memory(blocks: int) -> str:
    """Bytes that the books take for each block of a pool, when it is new and when all of it can be
    found."""
    began = time.perf_counter()
    BlockPool(blocks)
    made = time.perf_counter() - began
    tracemalloc.start()
    pool = BlockPool(blocks)
    new, _ = tracemalloc.get_traced_memory()
    fill(pool)
    gc.collect()
    full, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return row(f"{blocks:,}", f"{new / blocks:.0f}", f"{full / blocks:.0f}", f"{made * 1e3:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--running", type=int, nargs="*", help="only the rows of these sizes")
    parser.add_argument("--calm", action="store_true", help="calm the garbage collector")
    parser.add_argument("--cold", action="store_true", help="empty the processor's caches")
    args = parser.parse_args()
    collector, flood = Collector(args.calm), Flood(args.cold)
    names = "sequences", "blocks", "rows a step", "schedule + update, median ms", "µs a row"
    more = "p99 ms", "of it collector", "processor, median ms", "coding, median ms"
    print(row(*names, *more))
    print(row(*["---"] * 9))
    engines = [
        Engine(running, blocks, flood)
        for running, blocks in SIZES
        if args.running is None or running in args.running
    ]
    measure(engines, args.steps, collector)
    for engine in engines:
        print(show(engine))
    probe = seconds(lambda: [number * number for number in range(100_000)], 15)
    print(f"\nThe probe took {probe * 1e3:.2f} ms.")
    print()
    print(row("blocks", "bytes a block, new", "all with content", "ms to make"))
    print(row(*["---"] * 4))
    print(show_memory(1_000_000))
    print()
    print(describe())


if __name__ == "__main__":
    main()
