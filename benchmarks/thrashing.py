"""A pool too small for its load, simulated: what watermarks spare, and whether throughput falls.

    python benchmarks/thrashing.py [watermark load] [--save FILE.png]

The scheduler that serves under a virtual clock. Sequences that give way are computed again, as with
`--preemption-mode recompute` or without a host tier, and find nothing of theirs in the cache unless
said otherwise. "Again" is how many tokens were computed more than once, of those needed. With "no
guards" the scheduler takes back those that gave way twice before there is room for all of them, and
spares nobody who gave way often.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from driver import say
from machine import row

from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED, ModelSizes
from octavo.cluster.simulation.record import Summary
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.workload import (
    Job,
    Length,
    draw_arrivals,
    draw_lengths,
    make_jobs,
)
from octavo.cluster.traces.lengths import PAPER_MEANS
from octavo.scheduler import preemption, scheduler
from octavo.scheduler.config import SchedulerConfig

SLOTS = 299_584
QWEN = ModelSizes("qwen2.5-7b", 28, 3584, 28, 4, 128, 18_944, 152_064, 32_768)
# preemptions and output tokens a second, of vLLM on one GB200
KNOWN = {0.0: (1065, 11_582), 0.02: (400, 12_134), 0.05: (187, 12_167), 0.1: (168, 11_835)}
NEVER = 10**9
CROWDS = (8, 16, 24, 32, 48, 64, 96, 128)


@contextmanager
def guards(there: bool) -> Iterator[None]:
    """Whether what gave way often is treated better."""
    before = scheduler.WHOLE_AFTER, preemption.SPARED_AFTER
    if not there:
        scheduler.WHOLE_AFTER = preemption.SPARED_AFTER = NEVER
    try:
        yield
    finally:
        scheduler.WHOLE_AFTER, preemption.SPARED_AFTER = before


def at_once(lengths: list[Length]) -> list[Job]:
    return list(make_jobs(lengths, draw_arrivals(float("inf"), len(lengths), 0)))


def again(found: Summary, jobs: list[Job]) -> float:
    """Tokens computed more than once over those needed. The last of an answer is not computed."""
    needed = sum(job.prompt + job.answer - 1 for job in jobs)
    return found.computed_tokens / needed - 1


def watermark(_: Path | None, only: list[str], seed: int) -> None:
    """vLLM's measurement of its watermark (vllm#44594): Qwen2.5-7B on a GB200, 299,584 slots, 450
    requests of 800 to 1,200 tokens in and 4,000 to 6,000 out, 128 in flight; two thirds of what
    these need. And with half of that pool, and a quarter."""
    source = random.Random(seed)
    jobs = at_once(
        [(source.randint(800, 1200), source.randint(4000, 6000)) for _ in range(450)],
    )
    columns = ["slots", "watermarks", "preemptions", "vLLM's", "requests preempted"]
    print(row(*columns, "again", "output tokens/s", "vLLM's"))
    print(row(*["---"] * 8))
    marks = {f"{100 * mark:g} %": (mark, mark, True) for mark in KNOWN}
    marks["4 and 8 %"] = (0.04, 0.08, True)
    marks |= {f"{100 * mark:g} %, no guards": (mark, mark, False) for mark in KNOWN}
    for slots in (SLOTS, SLOTS // 2, SLOTS // 4):
        for title, (low, high, guarded) in marks.items():
            if slots < SLOTS and title not in ("0 %", "2 %", "4 and 8 %", "0 %, no guards"):
                continue
            if only and title not in only:
                continue
            settings = SchedulerConfig(
                max_model_len=8192,
                max_num_seqs=128,
                max_num_queued_reqs=2**31,
                watermark_low=low,
                watermark_high=high,
                preemption_mode="recompute",
                enable_prefix_caching=False,
            )
            with guards(guarded):
                found = simulate(Setup(PRESETS["b200"], QWEN, settings, blocks=slots // 16), jobs)
            known = KNOWN.get(low) if slots == SLOTS and low == high else None
            theirs = ("", "") if known is None else (f"{known[0]:,}", f"{known[1]:,}")
            say(f"{slots} slots, {title}")
            cells = f"{found.preemptions:,}", theirs[0], found.preempted_requests
            more = f"{100 * again(found, jobs):.1f} %", f"{found.output_throughput:,.0f}"
            print(row(f"{slots:,}", title, *cells, *more, theirs[1]), flush=True)


def load(file: Path | None, _: list[str], seed: int) -> None:
    """OPT-13B with the paper's 15,728 slots on an A100-40GB: 512 requests of ShareGPT's lengths,
    so many of them at once as are let in; output tokens a second, what was computed again, and
    preemptions a request."""
    jobs = at_once(draw_lengths(PAPER_MEANS["sharegpt"], 512, seed, 2048, 1.45))
    lines = {
        "none, no guards": (0.0, 0.0, False, False),
        "none": (0.0, 0.0, True, False),
        "4 and 8 %": (0.04, 0.08, True, False),
        "4 and 8 %, cached": (0.04, 0.08, True, True),
    }
    print(row("most at once", *(f"watermarks: {title}" for title in lines)))
    print(row(*["---"] * (1 + len(lines))))
    found: dict[str, list[tuple[int, float, float]]] = {title: [] for title in lines}
    for crowd in CROWDS:
        cells = []
        for title, (low, high, guarded, cached) in lines.items():
            settings = SchedulerConfig(
                max_model_len=2048,
                max_num_seqs=crowd,
                max_num_queued_reqs=2**31,
                watermark_low=low,
                watermark_high=high,
                preemption_mode="recompute",
                enable_prefix_caching=cached,
            )
            setup = Setup(PRESETS["a100-40"], NAMED["opt-13b"], settings, blocks=15_728 // 16)
            with guards(guarded):
                run = simulate(setup, jobs)
            more = 100 * again(run, jobs)
            found[title].append((crowd, run.output_throughput, more))
            cells.append(
                f"{run.output_throughput:.0f} / {more:.1f} % / {run.preemptions_per_request:.2f}"
            )
        say(f"{crowd} at once")
        print(row(crowd, *cells), flush=True)
    if file is not None:
        draw(found, file)


def draw(found: dict[str, list[tuple[int, float, float]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    labels = "output tokens a second", "tokens computed again, %"
    for place, (axes, label) in enumerate(zip(both, labels, strict=True), 1):
        for (title, points), style in zip(found.items(), ("C3-", "k:", "k-", "C0--"), strict=True):
            axes.plot([each[0] for each in points], [each[place] for each in points], style,
                      label=title)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(CROWDS, [str(each) for each in CROWDS])
        axes.set_xlabel("most requests at once")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    both[1].legend(title="watermarks", fontsize=8)
    figure.savefig(file, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="watermark, load; default: both")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="watermarks of `watermark`"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--save", type=Path, metavar="FILE", help="a picture of `load`")
    args = parser.parse_args()
    parts: dict[str, Callable[[Path | None, list[str], int], None]] = {
        "watermark": watermark,
        "load": load,
    }
    for name in args.parts or parts:
        if name not in parts:
            parser.error(f"{name!r} is none of {', '.join(parts)}")
        print(f"\n{name}: {parts[name].__doc__}\n".replace("\n    ", "\n"))
        parts[name](args.save, args.only, args.seed)


if __name__ == "__main__":
    main()
