"""Measures what the simulator must know of this machine, and holds the simulator to it.

    python benchmarks/calibrate.py [--save cpu.json] [--requests 24] [--loads 0 3]

The embedded model, in the real engine in this process. A few loads are run for real, and between
their steps, while their clock stands still, steps of plain shapes are timed (see shapes.py): a
shared machine changes its speed from second to second. The fields of `Hardware` are fitted to the
means of the shapes, and to what passes between two steps of the engine; then the same loads are
simulated, and their throughput is compared. Of the loads themselves nothing is fitted.

`octavo simulate --hardware cpu.json smollm2-135m` then speaks of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lengths
import msgspec
from allocation import Watch, open_engine, replay
from driver import embedded_model, make_request, say
from machine import describe, probe, row
from shapes import Interleaved, Shape, Timed

from octavo.cluster.config import EngineConfig
from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.hardware import Hardware
from octavo.cluster.simulation.models import ModelSizes
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.workload import Job, draw_arrivals, make_jobs
from octavo.workers.model_config import ModelConfig

BLOCK_SIZE = 16
LONGEST = 2048
BLOCKS = 2500  # of the engine; the largest load fills a fifth of them
SHAPE_BLOCKS = 1700
FITTED = {  # where the search begins
    "bandwidth": 4e10,
    "flops": 1e12,
    "attention_bandwidth_share": 0.7,
    "attention_flops_share": 0.4,
    "step_seconds": 1e-3,
    "row_seconds": 5e-5,
}
FITTED_SHARES = {"overlap": 0.5, "repeated_read_share": 0.5}  # from 0 to 1


def other_loads(count: int) -> dict[str, list[Job]]:
    mixed = lengths.sample("sharegpt", None, count, scale=0.5)
    return {
        "64 at once, 128 in, 128 out": list(make_jobs([(128, 128)] * 64, [0.0] * 64)),
        "ShareGPT's lengths halved, at once": list(make_jobs(mixed, [0.0] * count)),
        "the same, Poisson, 3 a second": list(make_jobs(mixed, draw_arrivals(3.0, count, 0))),
        "one prefix of 512, 32 in, 64 out": list(make_jobs([(32, 64)] * 32, [0.0] * 32, 512)),
    }


async def run_real(engine: Any, watch: Watch, jobs: list[Job], name: str) -> float:
    """Seconds from the first arrival to the last token, by the clock of `watch`."""
    engine.reset_prefix_cache()
    requests = [
        make_request(f"{name}/{job.number}", _spread(job.tokens(), name), job.answer)
        for job in jobs
    ]
    start = watch.clock()
    await replay(engine, watch, requests, [job.at for job in jobs])
    return max(watch.ended[request.id] for request in requests) - start


def _spread(tokens: list[int], name: str) -> list[int]:
    """Real token ids for the simulator's: equal ones stay equal, place by place."""
    return [random.Random(f"{name} {at} {token}").randrange(100, 40_000)
            for at, token in enumerate(tokens)]  # fmt: skip


def fit(timed: Iterable[Timed], gap: float, model: ModelSizes) -> tuple[Hardware, float]:
    """The hardware that explains the shapes' mean seconds best, `gap` after each step included, and
    the median error: a search along one field after another, by absolute errors of logarithms.
    Means of seconds and not medians, as a load bears each disturbance as well."""
    means = [(each.load, statistics.fmean(each.seconds) + gap) for each in timed]

    def make(values: dict[str, float]) -> Hardware:
        return Hardware(
            name="cpu",
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
        return [math.log(cost.seconds(load) / seconds) for load, seconds in means]

    def total(values: dict[str, float]) -> float:
        return sum(map(abs, errors(values)))

    values = FITTED | FITTED_SHARES
    best, width = total(values), 1.0
    while width > 0.01:
        before = best
        for field in values:
            for sign in (1, -1):
                changed = dict(values)
                if field in FITTED_SHARES:
                    changed[field] = min(1.0, max(0.0, values[field] + sign * width / 4))
                else:
                    changed[field] = values[field] * math.exp(sign * width)
                if (error := total(changed)) < best:
                    best, values = error, changed
        if best > 0.999 * before:
            width /= 2
    return make(values), statistics.median(map(abs, errors(values)))


async def compare(args: argparse.Namespace) -> None:
    config = EngineConfig(
        str(args.model),
        ("model",),
        dtype="bfloat16",
        max_model_len=LONGEST,
        num_gpu_blocks_override=BLOCKS + 1 + SHAPE_BLOCKS,
        swap_space=0.0,
        num_threads=args.threads,
    )
    model = ModelSizes.of(ModelConfig.from_directory(args.model))
    shapes = Interleaved(BLOCK_SIZE, SHAPE_BLOCKS)
    everything: dict[Shape, Timed] = {}
    print(describe())
    columns = "load", "output tok/s, measured", "simulated", "off", "shapes off, median", "probe"
    print(row(*columns))
    print(row(*["---"] * len(columns)))
    async with open_engine(config, LONGEST, shapes.watch, shapes.clock) as (engine, watch):
        await run_real(engine, watch, list(make_jobs([(100, 60)] * 16, [0.0] * 16)), "warm-up")
        gap = statistics.median(shapes.gaps)
        say(f"between two steps: {gap * 1e3:.2f} ms")
        for number, (title, jobs) in enumerate(other_loads(args.requests).items()):
            if number not in args.loads:
                continue
            say(title)
            speed = probe(args.threads)
            runs: list[float] = []
            with shapes.timing() as timed:
                while sum(runs) < args.seconds:
                    runs.append(await run_real(engine, watch, jobs, f"{len(runs)} {title}"))
            hardware, error = fit(timed.values(), gap, model)
            setup = Setup(hardware, model, config.scheduler_config(LONGEST), blocks=BLOCKS)
            found, seconds = simulate(setup, jobs), statistics.fmean(runs)
            off = f"{100 * (seconds / found.seconds - 1):+.1f} %"
            measured = sum(job.answer for job in jobs) / seconds
            rates = f"{measured:.0f}", f"{found.output_throughput:.0f}"
            print(row(title, *rates, off, f"{100 * error:.0f} %", speed), flush=True)
            for shape, each in timed.items():
                everything.setdefault(shape, Timed(each.load)).seconds += each.seconds
    if args.save is not None:
        hardware, _ = fit(everything.values(), gap, model)
        args.save.write_bytes(msgspec.json.format(msgspec.json.encode(hardware)) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=40, help="of ShareGPT's lengths")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each load runs at least")
    parser.add_argument("--loads", type=int, nargs="+", default=range(4), help="by number, from 0")
    parser.add_argument("--save", type=Path, help="JSON for --hardware")
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    asyncio.run(compare(args))


if __name__ == "__main__":
    main()
