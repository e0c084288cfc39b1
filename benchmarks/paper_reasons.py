"""Why rows of benchmarks/paper.py differ from the paper's: each supposed reason in runs of its own.

    python benchmarks/paper_reasons.py [knees large crowd wide examples chats] [--sharegpt FILE]

Every line changes one thing of what paper.py runs, and is compared with the first. All that reserve
memory have the pool less fragments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import lengths
import msgspec
from driver import say
from machine import row
from paper_runs import (
    BOUNDS,
    GRAIN,
    LIMIT,
    LLAMA_13B,
    OPT_13B,
    OPT_175B,
    SECONDS,
    Jobs,
    Served,
    drawn_lengths,
    off,
    repeated,
    sustained,
    unmixed,
    until_last_arrival,
    without_fragments,
    workload,
)

from octavo.cluster.simulation.setup import Setup
from octavo.cluster.traces.lengths import PAPER_MEANS, Length

Change = Callable[[Setup], Setup]
only: list[str] = []


def on(**changes: float) -> Change:
    """With another device."""

    def change(setup: Setup) -> Setup:
        return setup.changed(hardware=msgspec.structs.replace(setup.hardware, **changes))

    return change


def is_asked_for(title: str) -> bool:
    return not only or any(part in title for part in only)


def same(setup: Setup) -> Setup:
    return setup


def stretched(drawn: Sequence[Length], means: tuple[float, float]) -> list[Length]:
    """To those means."""
    factors = [
        mean * len(drawn) / sum(each[side] for each in drawn) for side, mean in enumerate(means)
    ]
    return [
        (max(1, round(prompt * factors[0])), max(1, round(answer * factors[1])))
        for prompt, answer in drawn
    ]


def reserving(served: Served, allocation: str, **changes: object) -> Setup:
    setup = served.setup(allocation, **changes)
    return setup if allocation == "paged" else without_fragments(setup)


def compare(
    served: Served,
    lines: dict[str, tuple[Change, Jobs, float]],
    allocations: Sequence[str],
    bounds: tuple[float, float],
    grain: int = 1,
) -> None:
    """The highest rates of each, in a table; with how many times `paged` does the others."""
    names = [f"paged / {each}" for each in allocations]
    print(row("changed", "paged, requests/s", *allocations, *names))
    print(row(*["---"] * (2 + 2 * len(allocations))))
    for title, (change, jobs, limit) in lines.items():
        if not is_asked_for(title):
            continue
        rates: list[float] = []
        for allocation in ("paged", *allocations):
            setup = change(reserving(served, allocation, grain=grain))
            high = min([bounds[1], *(1.1 * each for each in rates[:1])])
            rates.append(sustained(setup, jobs, bounds[0], high, limit))
            say(f"{title}, {allocation}: {rates[-1]:.2f}")
        ratios = [f"{rates[0] / each:.2f}" if each else "-" for each in rates[1:]]
        print(row(title, *(f"{each:.2f}" for each in rates), *ratios), flush=True)


def knees(sharegpt: Path | None) -> None:
    """Figure 12a, OPT-13B, ShareGPT: 1.9, 1.0-1.1, 0.75, 0.5 are where the paper's curves rise."""
    jobs = workload("sharegpt")
    lines = {
        "nothing": (same, jobs, LIMIT),
        "prompts in steps of their own": (unmixed, jobs, LIMIT),
        "0.2 s a token": (same, jobs, 0.2),
        "an hour": (same, repeated(drawn_lengths(PAPER_MEANS["sharegpt"]), 3600.0), LIMIT),
        "half of the peak bandwidth": (on(bandwidth_share=0.5), jobs, LIMIT),
    }
    if sharegpt is not None:
        found = stretched(lengths.sample("sharegpt", sharegpt, 4000), PAPER_MEANS["sharegpt"])
        kept = [each for each in found if sum(each) <= 2048]
        lines["lengths of a file"] = (same, repeated(kept, SECONDS["sharegpt"]), LIMIT)
    compare(
        OPT_13B, lines, ("oracle", "pow2", "max"), BOUNDS["opt-13b", "sharegpt"], GRAIN["sharegpt"]
    )


def large(sharegpt: Path | None) -> None:
    """Figure 12c, OPT-175B, ShareGPT: 1.7-2.7 and 2.7-8 times, the text says of all models."""
    jobs = workload("sharegpt", OPT_175B.seconds)

    def more(setup: Setup) -> Setup:
        return setup.changed({"max_num_seqs": 1024})

    def free(setup: Setup) -> Setup:
        return on(row_seconds=0.0)(more(setup))

    lines = {
        "nothing": (same, jobs, LIMIT),
        "1,024 sequences at once, not 256": (more, jobs, LIMIT),
        "nothing for each sequence": (on(row_seconds=0.0), jobs, LIMIT),
        "both": (free, jobs, LIMIT),
        "prompts in steps of their own": (unmixed, jobs, LIMIT),
        "0.2 s a token": (same, jobs, 0.2),
    }
    compare(OPT_175B, lines, ("oracle", "max"), (0.2, 12.0), GRAIN["sharegpt"])


def crowd(sharegpt: Path | None) -> None:
    """Figure 13b, OPT-13B, Alpaca at 30 a second: 132.44 at once."""
    print(row("ms a sequence", "requests/s", "at once", "off"))
    print(row(*["---"] * 4))
    for cost, rate in ((0.33, 30.0), (0.33, 28.5), (0.3, 30.0), (0.27, 30.0)):
        setup = on(row_seconds=cost / 1e3)(OPT_13B.setup())
        found = until_last_arrival(setup, workload("alpaca")(rate), look=0)
        say(f"{cost} ms, {rate} a second")
        print(row(cost, rate, f"{found.running:.2f}", off(found.running, 132.44)), flush=True)


def wide(sharegpt: Path | None) -> None:
    """Figure 14, OPT-13B, Alpaca's lengths, 6 beams: 2.3 times."""

    def more(setup: Setup) -> Setup:
        return setup.changed({"max_num_seqs": 1024})

    def free(setup: Setup) -> Setup:
        return on(row_seconds=0.0)(more(setup))

    print(row("changed", "paged, requests/s", "oracle", "paged / oracle"))
    print(row(*["---"] * 4))
    lines = {
        "1,024 rows at once, not 256": more,
        "nothing for each sequence": on(row_seconds=0.0),
        "both": free,
    }
    for title, change in lines.items():
        if not is_asked_for(title):
            continue
        paged = change(OPT_13B.setup(sampling={"beam_width": 6}))
        best = sustained(paged, workload("alpaca", 150.0), 2.0, 20.0)
        oracle = change(reserving(OPT_13B, "oracle", grain=GRAIN["alpaca"]))
        rate = sustained(oracle, workload("alpaca", 150.0, copies=6), 1.0, 1.1 * best)
        say(f"{title}: {best:.2f}, {rate:.2f}")
        print(row(title, f"{best:.2f}", f"{rate:.2f}", f"{best / rate:.2f}"), flush=True)


def examples(sharegpt: Path | None) -> None:
    """Figure 16, LLaMA-13B: 3.58 times with 341 tokens before each sentence, 1.67 with 80."""
    guess = (35.0, 50.0)

    def some(prefix: int, means: tuple[float, float] = guess) -> Jobs:
        return repeated(drawn_lengths(means), SECONDS["alpaca"], prefix)

    def chunks(setup: Setup) -> Setup:
        return unmixed(on(flops_share=0.4)(setup))

    cached = on(repeated_read_share=0.25)
    for prefix in (341, 80):
        lines = {
            f"{prefix}: nothing": (same, some(prefix), LIMIT),
            "sentences of 25 and 35": (same, some(prefix, (25.0, 35.0)), LIMIT),
            "sentences of 25 and 25": (same, some(prefix, (25.0, 25.0)), LIMIT),
            "sentences of 60 and 90": (same, some(prefix, (60.0, 90.0)), LIMIT),
            "prompts in steps of their own": (unmixed, some(prefix), LIMIT),
            "40 % of the peak arithmetic, not 60": (on(flops_share=0.4), some(prefix), LIMIT),
            "both": (chunks, some(prefix), LIMIT),
            "nothing for each sequence": (on(row_seconds=0.0), some(prefix), LIMIT),
            "read together, a quarter": (cached, some(prefix), LIMIT),
            "25 and 25, a quarter": (cached, some(prefix, (25.0, 25.0)), LIMIT),
        }
        compare(LLAMA_13B, lines, ("oracle",), (2.0, 80.0), GRAIN["alpaca"])


def chats(sharegpt: Path | None) -> None:
    """Figure 17, OPT-13B: twice the rate of each of Orca's. `max` holds 2,048 slots for each."""
    answers = [min(1024, answer) for _, answer in drawn_lengths(PAPER_MEANS["sharegpt"])]

    def some(prompt: int, seconds: float = SECONDS["sharegpt"]) -> Jobs:
        return repeated([(prompt, answer) for answer in answers], seconds)

    lines = {
        "nothing": (same, some(1024), LIMIT),
        "prompts of 512": (same, some(512), LIMIT),
        "prompts in steps of their own": (unmixed, some(1024), LIMIT),
        "0.2 s a token": (same, some(1024), 0.2),
        "an hour": (same, some(1024, 3600.0), LIMIT),
    }
    compare(OPT_13B, lines, ("max",), (0.1, 4.0), GRAIN["sharegpt"])


PARTS = {each.__name__: each for each in (knees, large, crowd, wide, examples, chats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    lengths.add_argument(parser, "sharegpt")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="lines with it")
    args = parser.parse_args()
    only[:] = args.only
    for name in args.parts or PARTS:
        if name not in PARTS:
            parser.error(f"{name!r} is none of {', '.join(PARTS)}")
        print(f"\n{name}: {PARTS[name].__doc__}\n")
        PARTS[name](args.sharegpt)


if __name__ == "__main__":
    main()
