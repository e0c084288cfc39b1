"""What `--journal` costs the step loop: `schedule()` + `update()` with it and without.

The load is that of `scheduler_cost.py`. With a journal and without are measured in turn, a few
hundred steps each, on two schedulers with the same requests. Four things are told apart: what the
calls themselves take more, which comes between two steps; `settle`, which the engine does while the
workers compute; what the writer's thread takes of a processor; and the pause where a file is full
and the next begins with the whole state. Where other programs are in the way, the processor's time
is what to look at.

    python benchmarks/journal.py
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from machine import describe, row
from scheduler_cost import Load, answer, fill

from octavo.cluster.journal.recorder import Driven, Recorder
from octavo.cluster.journal.settings import JournalSettings
from octavo.cluster.journal.state import freeze
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.scheduler import Scheduler

SIZES = ((16, 20_000), (256, 20_000), (256, 1_000_000), (1024, 250_000))
WARM_UP = 600
TURN = 50  # steps
STEP_SECONDS = 0.02  # by the journal's clock, so that chunks are as large as in a server


@dataclass
class Side:
    """One scheduler under load, driven through a recorder or by itself."""

    scheduler: Scheduler
    driven: Driven
    recorder: Recorder | None
    load: Load
    source: random.Random = field(default_factory=lambda: random.Random(1))
    calls: list[float] = field(default_factory=list)  # ms a step
    processor: list[float] = field(default_factory=list)  # of it, the processor's
    settling: list[float] = field(default_factory=list)
    now: float = 0.0

    def step(self, counted: bool) -> None:
        self.load.refill()
        self.now += STEP_SECONDS
        began, own = time.perf_counter(), time.thread_time()
        plan = self.driven.schedule(self.now)
        calls, processor = time.perf_counter() - began, time.thread_time() - own
        assert plan is not None
        result = answer(plan, self.source)
        own = time.thread_time()
        if self.recorder is not None:
            self.recorder.settle(self.now)
        settling = time.thread_time() - own
        began, own = time.perf_counter(), time.thread_time()
        self.driven.update(result, self.now)
        calls += time.perf_counter() - began
        processor += time.thread_time() - own
        self.scheduler.take_ended()
        self.scheduler.take_begun()
        if counted:
            self.calls.append(calls * 1e3)
            self.processor.append(processor * 1e3)
            self.settling.append(settling * 1e3)


def side(running: int, blocks: int, path: Path | None) -> Side:
    config = SchedulerConfig(
        max_model_len=2048,
        max_num_seqs=running,
        max_num_batched_tokens=8 * running,
        max_num_queued_reqs=running,
    )
    scheduler = Scheduler(config, Capacity(blocks, config.block_size))
    fill(scheduler.cache.pool)
    if path is None:
        return Side(scheduler, scheduler, None, Load(scheduler, running))
    recorder = Recorder(scheduler, JournalSettings(path), 0.0)
    return Side(scheduler, recorder, recorder, Load(scheduler, running, recorder.add))


def measure(running: int, blocks: int, steps: int, folder: Path) -> str:
    path = folder / f"{running}-{blocks}"
    sides = side(running, blocks, None), side(running, blocks, path)
    for each in sides:
        for _ in range(WARM_UP):
            each.step(False)
    gc.collect()
    gc.freeze()
    without, recorded = sides
    assert recorded.recorder is not None
    before, began, own = path.stat().st_size, time.process_time(), time.thread_time()
    for _ in range(steps // TURN):
        for each in sides:
            for _ in range(TURN):
                each.step(True)
    recorded.recorder.close(recorded.now)
    writer = (time.process_time() - began) - (time.thread_time() - own)
    size = (path.stat().st_size - before) / len(recorded.calls)
    before_freezing = time.thread_time()
    frozen = freeze(recorded.scheduler)
    pause = time.thread_time() - before_freezing
    state = len(frozen.head) + sum(map(len, frozen.pieces()))
    gc.unfreeze()
    plain, with_it = statistics.median(without.calls), statistics.median(recorded.calls)
    plain_own, own = statistics.median(without.processor), statistics.median(recorded.processor)
    settling = statistics.median(recorded.settling)
    return row(
        f"{running:,}",
        f"{blocks:,}",
        f"{plain:.3f}",
        f"{with_it:.3f} ({100 * (with_it / plain - 1):+.1f} %)",
        f"{plain_own:.3f}",
        f"{own:.3f} ({100 * (own / plain_own - 1):+.1f} %)",
        f"{settling:.3f} ({100 * settling / plain_own:.0f} %)",
        f"{1e3 * writer / len(recorded.calls):.3f}",
        f"{size:,.0f}",
        f"{pause * 1e3:.0f}",
        f"{state / 1e6:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    names = "sequences", "blocks", "schedule + update, median ms", "with a journal"
    more = (
        "by the processor",
        "settling, processor ms",
        "writing, processor ms",
        "bytes a step",
        "new file, processor ms",
        "state, MB",
    )
    print(row(*names, *more))
    print(row(*["---"] * 11))
    with tempfile.TemporaryDirectory() as folder:
        for running, blocks in SIZES:
            print(measure(running, blocks, args.steps, Path(folder)), flush=True)
    print()
    print(describe())


if __name__ == "__main__":
    main()
