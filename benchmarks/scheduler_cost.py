"""What planning costs: `schedule()` + `update()` of the real scheduler, without any model.

256 sequences are kept running; each that ends is replaced by a new one with a prompt of its own, as
under steady load. The workers' answers are made up, and making them is not counted. Wall time is
what counts; the processor's time beside it tells whether other programs were in the way.

    python benchmarks/scheduler_cost.py
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field

from machine import describe, row

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.plan import StepPlan, StepResult, decode_plan, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler


class Load:
    """Requests with prompts of 64 to 1,024 tokens and answers of 64 to 512, seeded."""

    def __init__(self, scheduler: Scheduler, target: int) -> None:
        self._scheduler = scheduler
        self._target = target
        self._random = random.Random(0)
        self._count = 0

    def refill(self) -> None:
        while self._scheduler.num_running + self._scheduler.num_waiting < self._target:
            self._count += 1
            prompt = [self._random.randrange(50_000) for _ in range(self._random.randint(64, 1024))]
            sampling = SamplingParams(
                max_tokens=self._random.randint(64, 512), ignore_eos=True, seed=0
            )
            self._scheduler.add(Request(f"r{self._count}", prompt, sampling), 0.0)


def answer(plan: StepPlan, source: random.Random) -> StepResult:
    sampled = sum(work.sample for work in plan.work)
    return StepResult(plan.step, [source.randrange(50_000) for _ in range(sampled)])


@dataclass(slots=True)
class Costs:
    """Milliseconds of every step: schedule + update by the clock and by the processor, and coding
    a plan for the wire and back. `rows` is the number of rows computed."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    coding: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def measure(running: int, steps: int, blocks: int) -> Costs:
    config = SchedulerConfig(max_model_len=2048, max_num_seqs=running, max_num_batched_tokens=2048)
    scheduler = Scheduler(config, Capacity(blocks, config.block_size))
    load, source, costs = Load(scheduler, running), random.Random(1), Costs()
    for step in range(-running, steps):  # the first ones fill the engine
        load.refill()
        wall, processor = time.perf_counter(), time.thread_time()
        plan = scheduler.schedule(0.0)
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        assert plan is not None
        coding = time.perf_counter()
        decode_plan(encode(plan))
        coding = time.perf_counter() - coding
        result = answer(plan, source)
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        scheduler.update(result, 0.0)
        wall, processor = time.perf_counter() - wall, time.thread_time() - processor
        if step >= 0:
            costs.wall.append(wall * 1e3)
            costs.processor.append(processor * 1e3)
            costs.coding.append(coding * 1e3)
            costs.rows.append(len(plan.work))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=20_000, help="of the pool, 16 tokens each")
    args = parser.parse_args()
    costs = measure(args.running, args.steps, args.blocks)
    print(describe())
    names = "rows a step", "schedule + update, median ms", "p99 ms", "processor, median ms"
    print(row(*names, "coding, median ms"))
    print(row(*["---"] * 5))
    print(
        row(
            f"{statistics.mean(costs.rows):.0f}",
            f"{statistics.median(costs.wall):.3f}",
            f"{statistics.quantiles(costs.wall, n=100)[98]:.3f}",
            f"{statistics.median(costs.processor):.3f}",
            f"{statistics.median(costs.coding):.3f}",
        )
    )


if __name__ == "__main__":
    main()
