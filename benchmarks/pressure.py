"""What happens when memory is short: a pool of 60 % of the working set.

    python benchmarks/pressure.py [--sharegpt FILE] [--scale 0.5] [--requests 40]

All requests come at once. The working set is what they hold at their peak in a pool that is ample.
First table, on the real model: the same requests in a pool of 60 % of that, with blocks given as
they are needed, beside a run in the same pool that admits only what fits (`allocation="oracle"`:
each request reserves at admission exactly the blocks that it will use, and is never preempted).

Second table: blocks that must be copied when a request is preempted, in mode `swap`, with nothing
written behind and with the default. First the real model on the same requests, then the null worker
on many more of full length: the plans do not depend on what the tokens are.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lengths
from driver import Driver, embedded_model, make_request, random_tokens, say
from lengths import Length
from machine import describe, probe, row

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.counters import Counters
from octavo.workers.config import WorkerConfig
from octavo.workers.member import Member
from octavo.workers.null import NullWorker
from octavo.workers.worker import Worker

SHARE = 0.6  # of the working set
BLOCK_SIZE = 16
NO_MARKS = {"watermark_low": 0.0, "watermark_high": 0.0}  # where nothing grows, or all is ample


@dataclass(frozen=True, slots=True)
class Engine:
    """Where a run takes place: the real model in `directory`, or the null worker."""

    directory: Path | None
    max_model_len: int
    max_num_seqs: int
    threads: int

    @property
    def name(self) -> str:
        return "null" if self.directory is None else self.directory.name

    def worker(self, blocks: int, host_blocks: int) -> Member:
        if self.directory is None:
            return NullWorker(BLOCK_SIZE, num_blocks=blocks + 1, num_host_blocks=host_blocks)
        make = partial(
            WorkerConfig,
            str(self.directory),
            max_model_len=self.max_model_len,
            num_blocks_override=blocks + 1,
            num_threads=self.threads,
        )
        block_bytes = Worker(make()).layout.block_bytes
        return Worker(make(swap_space=(host_blocks + 0.5) * block_bytes / 2**30))

    def run(
        self, chosen: list[Length], blocks: int, host_blocks: int, **settings: Any
    ) -> tuple[float, Counters]:
        """Seconds, and what the scheduler counted, of all requests from first to last."""
        config = SchedulerConfig(
            max_model_len=self.max_model_len,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=256,
            max_num_queued_reqs=len(chosen) + 1,
            **settings,
        )
        driver = Driver(self.worker(blocks, host_blocks), config)
        driver.add([make_request("warm-up", random_tokens(64, "warm-up"), 8)])
        driver.run()
        driver.scheduler.reset_prefix_cache()
        driver.add(
            make_request(f"r{i}", random_tokens(prompt, f"r{i}"), answer)
            for i, (prompt, answer) in enumerate(chosen)
        )
        return driver.run(), driver.scheduler.counters

    def working_set(self, chosen: list[Length]) -> int:
        """Blocks held at the peak where there are enough, whatever computes them."""
        ample = sum(-(-sum(each) // BLOCK_SIZE) for each in chosen) + 100
        null = Engine(None, self.max_model_len, self.max_num_seqs, self.threads)
        return null.run(chosen, ample, 0, **NO_MARKS)[1].peak_blocks


def compare_times(engine: Engine, chosen: list[Length], pool: int) -> None:
    """The first table."""
    print(row("pool", "run", "seconds", "times", "preemptions a request", "swapped", "probe"))
    print(row(*["---"] * 7))
    base = 0.0
    for name, settings in (
        ("what fits (oracle)", {"allocation": "oracle", **NO_MARKS}),
        ("as needed (paged)", {}),
    ):
        say(name)
        speed = probe(engine.threads)
        wall, counters = engine.run(chosen, pool, pool, **settings)
        base = base or wall
        preemptions = f"{counters.preemptions / len(chosen):.2f}"
        swapped = f"{counters.preemptions_swap} of {counters.preemptions}"
        cells = pool, name, f"{wall:.1f}", f"{wall / base:.2f}", preemptions, swapped, speed
        print(row(*cells), flush=True)


def compare_copies(engine: Engine, chosen: list[Length], pool: int) -> None:
    """Rows of the second table."""
    base = 0
    for name, settings in (("nothing", {"write_behind_blocks": 0}), ("default", {})):
        say(f"{engine.name}, written behind: {name}")
        _, counters = engine.run(chosen, pool, 2 * pool, preemption_mode="swap", **settings)
        base = base or counters.swapped_out
        print(
            row(
                engine.name,
                len(chosen),
                pool,
                name,
                counters.preemptions,
                counters.swap_fallbacks,
                f"{counters.swapped_out:,}",
                f"{1 - counters.swapped_out / max(1, base):.0%}",
                f"{counters.stored:,}",
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lengths.add_argument(parser, "sharegpt")
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--scale", type=float, default=0.5, help="of lengths, on the real model")
    parser.add_argument("--requests", type=int, default=40, help="on the real model")
    parser.add_argument("--null-requests", type=int, default=400, help="full length, null worker")
    parser.add_argument("--running", type=int, default=24, help="requests at once, at most")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    directory = args.model or embedded_model()

    chosen = lengths.sample("sharegpt", args.sharegpt, args.requests, scale=args.scale)
    say(lengths.describe("sharegpt", args.sharegpt, chosen, args.scale))
    longest = int(lengths.LONGEST * args.scale)
    real = Engine(directory, longest, args.running, args.threads)
    working_set = real.working_set(chosen)
    pool = int(working_set * SHARE)
    print(describe())
    print(f"working set {working_set} blocks, {args.running} requests at once at most\n")
    compare_times(real, chosen, pool)

    print()
    columns = "model", "requests", "pool", "written behind", "preemptions", "no host room"
    print(row(*columns, "blocks copied out at preemption", "fewer", "blocks stored before"))
    print(row(*["---"] * 9))
    compare_copies(real, chosen, pool)
    many = lengths.sample("sharegpt", args.sharegpt, args.null_requests)
    null = Engine(None, lengths.LONGEST, 64, args.threads)
    compare_copies(null, many, int(null.working_set(many) * SHARE))


if __name__ == "__main__":
    main()
