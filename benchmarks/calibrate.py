"""Measures what the simulator must know of this machine, and holds the simulator to it.

    python benchmarks/calibrate.py [--save cpu.json] [--rounds 1]

The embedded model, in the real engine in this process. First the steps of plain loads, from one
sequence to 64 and prompts in between, are timed, and the fields of `Hardware` are fitted to them.
Then other loads are run for real and simulated, and their throughput is compared: none of their
steps was fitted. As shared machines change speed from minute to minute, steps are timed before and
after each of them, and fitted together.

`octavo simulate --hardware cpu.json smollm2-135m` then speaks of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import lengths
import msgspec
from allocation import Watch, open_engine, replay
from driver import embedded_model, make_request, say
from machine import describe, probe, row

from octavo.cluster.config import EngineConfig
from octavo.cluster.simulation.cost import Cost, Load, load_of
from octavo.cluster.simulation.hardware import Hardware
from octavo.cluster.simulation.models import ModelSizes
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.workload import Job, draw_arrivals, make_jobs
from octavo.scheduler.plan import decode_plan
from octavo.workers.model_config import ModelConfig
from octavo.workers.worker import Worker

BLOCK_SIZE = 16
LONGEST = 2048
BLOCKS = 4096
GAP = 0.005  # seconds between two steps, above which the engine had nothing to do
MOST_STEPS = 400  # that are fitted
FITTED = {  # where to begin, and the steps of the search, in powers of e
    "bandwidth": 4e10,
    "flops": 1e12,
    "attention_bandwidth_share": 0.7,
    "attention_flops_share": 0.4,
    "step_seconds": 1e-3,
    "row_seconds": 5e-5,
}


class Steps:
    """Times every step of the worker: from the end of the one before, where it began at once."""

    def __init__(self) -> None:
        self.found: list[tuple[Load, float]] = []
        self._ended = 0.0

    def watch(self, worker: Worker) -> Worker:
        execute = worker.execute

        def timed(raw: bytes) -> bytes | None:
            began = time.perf_counter()
            answer = execute(raw)
            ended = time.perf_counter()
            start = self._ended if began - self._ended < GAP else began
            self._ended = ended
            self.found.append((load_of(decode_plan(raw).work), ended - start))
            return answer

        worker.execute = timed  # type: ignore[method-assign]
        return worker


def plain_loads() -> list[list[Job]]:
    """Sequences side by side, all alike: few and many, short and long."""
    shapes = ((1, 32, 20), (4, 200, 12), (16, 64, 16), (8, 700, 8), (64, 40, 12), (24, 300, 6))
    return [list(make_jobs([(prompt, answer)] * count, [0.0] * count))
            for count, prompt, answer in shapes]  # fmt: skip


def other_loads(count: int) -> dict[str, list[Job]]:
    mixed = lengths.sample("sharegpt", None, count, scale=0.5)
    return {
        "64 at once, 128 in, 128 out": list(make_jobs([(128, 128)] * 64, [0.0] * 64)),
        "ShareGPT's lengths halved, at once": list(make_jobs(mixed, [0.0] * count)),
        "the same, Poisson, 3 a second": list(make_jobs(mixed, draw_arrivals(3.0, count, 0))),
        "one prefix of 512, 32 in, 64 out": list(make_jobs([(32, 64)] * 32, [0.0] * 32, 512)),
    }


async def run_real(engine: Any, watch: Watch, jobs: list[Job], name: str) -> float:
    """Seconds from the first arrival to the last token."""
    engine.reset_prefix_cache()
    requests = [
        make_request(f"{name}/{job.number}", _spread(job.tokens(), name), job.answer)
        for job in jobs
    ]
    start = time.monotonic()
    await replay(engine, watch, requests, [job.at for job in jobs])
    return max(watch.ended[request.id] for request in requests) - start


def _spread(tokens: list[int], name: str) -> list[int]:
    """Real token ids for the simulator's: equal ones stay equal, place by place."""
    return [random.Random(f"{name} {at} {token}").randrange(100, 40_000)
            for at, token in enumerate(tokens)]  # fmt: skip


def fit(steps: list[tuple[Load, float]], model: ModelSizes, name: str) -> tuple[Hardware, float]:
    """The hardware that explains the steps best, and the median error: a search along one field
    after another, by absolute errors of logarithms, so that a step that was disturbed does not
    count more than any other."""
    source = random.Random(0)
    chosen = steps if len(steps) <= MOST_STEPS else source.sample(steps, MOST_STEPS)

    def make(values: dict[str, float]) -> Hardware:
        return Hardware(
            name=name,
            memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            link=1e10,
            host_link=values["bandwidth"] / 4,
            bandwidth_share=1.0,
            flops_share=1.0,
            layer_seconds=0.0,
            cell_bytes=0.0,
            **values,
        )

    def errors(values: dict[str, float]) -> list[float]:
        cost = Cost(make(values), model, 1, BLOCK_SIZE)
        return [abs(math.log(cost.seconds(load) / seconds)) for load, seconds in chosen]

    values = {**FITTED, "overlap": 0.5}
    best, width = sum(errors(values)), 1.0
    while width > 0.01:
        before = best
        for field in values:
            for sign in (1, -1):
                changed = dict(values)
                if field == "overlap":
                    changed[field] = min(1.0, max(0.0, values[field] + sign * width / 4))
                else:
                    changed[field] = values[field] * math.exp(sign * width)
                if (error := sum(errors(changed))) < best:
                    best, values = error, changed
        if best > 0.999 * before:
            width /= 2
    return make(values), statistics.median(errors(values))


async def compare(args: argparse.Namespace) -> None:
    config = EngineConfig(
        str(args.model),
        ("model",),
        dtype="bfloat16",
        max_model_len=LONGEST,
        num_gpu_blocks_override=BLOCKS + 1,
        swap_space=0.0,
        num_threads=args.threads,
    )
    model = ModelSizes.of(ModelConfig.from_directory(args.model))
    steps = Steps()
    print(describe())
    print(row("load", "output tok/s, measured", "simulated", "off", "steps off, median", "probe"))
    print(row(*["---"] * 6))
    hardware: Hardware | None = None
    async with open_engine(config, LONGEST, steps.watch) as (engine, watch):

        async def time_steps(turn: str) -> list[tuple[Load, float]]:
            steps.found.clear()
            for number, jobs in enumerate(plain_loads()):
                await run_real(engine, watch, jobs, f"{turn}.{number}")
            return list(steps.found)

        await time_steps("warm-up")
        for turn in range(args.rounds):
            for title, jobs in other_loads(args.requests).items():
                say(title)
                speed = probe(args.threads)
                timed = await time_steps(f"{turn} before {title}")
                seconds = await run_real(engine, watch, jobs, f"{turn} {title}")
                timed += await time_steps(f"{turn} after {title}")
                hardware, error = fit(timed, model, "cpu")
                setup = Setup(hardware, model, config.scheduler_config(LONGEST), blocks=BLOCKS)
                found = simulate(setup, jobs)
                tokens = sum(job.answer for job in jobs)
                off = f"{100 * (seconds / found.seconds - 1):+.1f} %"
                rates = f"{tokens / seconds:.0f}", f"{found.output_throughput:.0f}"
                print(row(title, *rates, off, f"{100 * error:.0f} %", speed), flush=True)
    if args.save is not None and hardware is not None:
        args.save.write_bytes(msgspec.json.format(msgspec.json.encode(hardware)) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--save", type=Path, help="JSON for --hardware")
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    asyncio.run(compare(args))


if __name__ == "__main__":
    main()
