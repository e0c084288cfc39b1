"""What one preemption costs: computed again, swapped, or as the engine chooses, by length.

    python benchmarks/preemption.py [--lengths 64 128 ...] [--tokens 16384] [--plot FILE]

A sequence decodes alone; then it is preempted, other requests are taken to have used all of its
device blocks, and it is resumed. The cost is the time until its next token, less that of the
ordinary steps before and after: copying out and back in, or computing again. Nothing is written
behind, so that swap has all its copies to make. Three engines on the same model, one for each mode,
take turns.

Medians of 64 preemptions, of which most cost little beside the scatter of a step; computing again
needs fewer, `--tokens` tokens of them. The first two of a length are not counted: memory is touched
for the first time, and `auto` knows no rates yet. Writes a table and a plot.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from driver import Driver, embedded_model, make_request, random_tokens, say
from machine import describe, probe, row

from octavo.scheduler.config import PreemptionMode, SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker

LENGTHS = [64, 128, 256, 512, 1024, 2048]
MODES: tuple[PreemptionMode, ...] = ("recompute", "swap", "auto")
BLOCK_SIZE = 16
TURNS = 4  # preemptions of one sequence
MOST = 64  # preemptions of a length and mode
LEAST = 8
WARM_UP = 2  # of the first sequence of a length


class Victim:
    """One engine with one sequence in it, which is preempted again and again."""

    def __init__(self, mode: PreemptionMode, args: argparse.Namespace, longest: int) -> None:
        swap_space = 0 if mode == "recompute" else args.swap_space
        worker = WorkerConfig(
            str(args.model),
            dtype=args.dtype,
            max_model_len=longest,
            max_num_batched_tokens=args.step_tokens,
            num_blocks_override=2 * longest // BLOCK_SIZE + 2,
            swap_space=swap_space,
            num_threads=args.threads,
        )
        scheduler = SchedulerConfig(
            max_model_len=longest,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=args.step_tokens,
            preemption_mode=mode,
            write_behind_blocks=0,
        )
        self._driver = Driver(Worker(worker), scheduler)
        self._requests = 0

    def begin(self, length: int) -> None:
        """A new sequence, which has `length` tokens after `TURNS` preemptions."""
        self._driver.run()  # the one before comes to its end
        self._driver.scheduler.reset_prefix_cache()
        self._requests += 1
        name = f"r{self._requests}"
        answer = 4 * TURNS + 1  # each turn is four tokens
        prompt = random_tokens(length + 1 - answer, name)
        self._driver.add([make_request(name, prompt, answer + 1)])
        self._until_token()

    def preempt(self) -> tuple[float, str]:
        """Milliseconds that a preemption costs, and what came of it."""
        self._until_token()  # another engine ran last: the caches are its own
        before = self._until_token()
        scheduler = self._driver.scheduler
        (group,) = scheduler.roster.running
        scheduler._preemption._preempt(group)
        scheduler.reset_prefix_cache()  # its device blocks went to others
        (decision,) = scheduler.take_decisions()
        resumed = self._until_token()
        return resumed - (before + self._until_token()) / 2, decision.outcome

    def _until_token(self) -> float:
        start = time.perf_counter()
        while not self._driver.step():
            pass
        return (time.perf_counter() - start) * 1e3


def measure(
    victims: dict[PreemptionMode, Victim], length: int, tokens: int
) -> tuple[dict[PreemptionMode, float], str]:
    """Median milliseconds by mode, and what `auto` chose."""
    costs: dict[PreemptionMode, list[float]] = {mode: [] for mode in victims}
    choices: list[str] = []
    for turn in range(WARM_UP + MOST):
        for mode, victim in victims.items():
            if mode == "recompute" and turn >= WARM_UP + max(LEAST, tokens // length):
                continue
            if turn % TURNS == 0:
                victim.begin(length)
            cost, outcome = victim.preempt()
            if turn >= WARM_UP:
                costs[mode].append(cost)
                if mode == "auto":
                    choices.append(outcome)
    chosen = ", ".join(f"{name} {choices.count(name)}" for name in sorted(set(choices)))
    return {mode: statistics.median(each) for mode, each in costs.items()}, chosen


def draw(
    lengths: list[int], curves: dict[PreemptionMode, list[float]], title: str, file: Path
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    styles = {"recompute": "o-", "swap": "s-", "auto": "k--"}
    for mode, milliseconds in curves.items():
        axes.plot(lengths, milliseconds, styles[mode], label=mode, markersize=5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xlabel("tokens of the sequence")
    axes.set_ylabel("cost of a preemption, ms")
    axes.set_title(title, fontsize=10)
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=16_384, help="computed again for each length")
    parser.add_argument("--step-tokens", type=int, default=256)
    parser.add_argument("--swap-space", type=float, default=0.25, help="GiB")
    parser.add_argument(
        "--plot", type=Path, default=Path(__file__).with_name("preemption.png"), help="a PNG file"
    )
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    longest = max(args.lengths) + 2
    victims = {mode: Victim(mode, args, longest) for mode in MODES}
    curves: dict[PreemptionMode, list[float]] = {mode: [] for mode in MODES}
    print(describe())
    print(row("tokens", *(f"{mode}, ms" for mode in MODES), "auto chose", "auto / better", "probe"))
    print(row(*["---"] * 7))
    worst = 0.0
    for length in args.lengths:
        say(f"{length} tokens")
        speed = probe(args.threads)
        costs, chosen = measure(victims, length, args.tokens)
        for mode, cost in costs.items():
            curves[mode].append(cost)
        ratio = costs["auto"] / min(costs["recompute"], costs["swap"])
        worst = max(worst, ratio)
        cells = [f"{costs[mode]:.2f}" for mode in MODES]
        print(row(length, *cells, chosen, f"{ratio:.2f}", speed), flush=True)
    print(f"\nauto is at worst {worst:.2f} times the better of the two")
    draw(args.lengths, curves, f"{args.model.name}, {args.dtype}, CPU, no write-behind", args.plot)


if __name__ == "__main__":
    main()
