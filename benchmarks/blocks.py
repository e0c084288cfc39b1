"""What it costs to look at memory: `GET /debug/blocks`, in the engine, with 100,000 blocks in use.

    python benchmarks/blocks.py [--blocks 100000] [--requests 200]

Every block is held by one of the requests, which have prompts of their own, and all but the last of
each are full and named: there is hardly more to say. Describing and encoding are timed together, as
the step loop waits for both.
"""

from __future__ import annotations

import argparse
import statistics
import time

import msgspec
from driver import make_request, random_tokens, say
from machine import describe, row

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.introspection import describe_blocks
from octavo.scheduler.plan import StepResult
from octavo.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16


def full_scheduler(blocks: int, requests: int) -> Scheduler:
    """A scheduler whose `requests` have computed prompts that fill all of its `blocks`."""
    length = blocks // requests * BLOCK_SIZE
    config = SchedulerConfig(
        max_model_len=length,
        max_num_seqs=requests,
        max_num_batched_tokens=blocks * BLOCK_SIZE,
        max_num_queued_reqs=requests,
        watermark_low=0,
        watermark_high=0,
    )
    scheduler = Scheduler(config, Capacity(blocks + 1, BLOCK_SIZE))
    for i in range(requests):
        prompt = random_tokens(length - 2, f"r{i}")
        scheduler.add(make_request(f"r{i}", prompt, 2), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.update(StepResult(plan.step, [7] * requests), 0.0)
    return scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=51)
    args = parser.parse_args()
    say("filling the pool")
    scheduler = full_scheduler(args.blocks, args.requests)
    wall, processor, raw = [], [], b""
    for _ in range(args.rounds):
        began, worked = time.perf_counter(), time.thread_time()
        raw = msgspec.json.encode(describe_blocks(scheduler))
        wall.append((time.perf_counter() - began) * 1e3)
        processor.append((time.thread_time() - worked) * 1e3)
    print(describe())
    print(row("blocks held", "requests", "median ms", "least ms", "processor, median ms", "MB"))
    print(row(*["---"] * 6))
    print(
        row(
            f"{scheduler.cache.pool.used:,}",
            len(scheduler.roster.running),
            f"{statistics.median(wall):.1f}",
            f"{min(wall):.1f}",
            f"{statistics.median(processor):.1f}",
            f"{len(raw) / 1e6:.1f}",
        )
    )


if __name__ == "__main__":
    main()
