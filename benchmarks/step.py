"""Where the time of a step goes: matrix products, attention, other kernels, sampling, Python.

    python benchmarks/step.py [--batch 1 16 64] [--context 256] [--plot PNG] [--save JSON]
                              [--beside JSON]

The real worker and scheduler in this process, one plan in flight. A step is timed as it is, with
clocks around the tape of the layers' kernels, the output head and sampling: what these leave is
Python, the worker's own and the plan's coding. Then again with a clock in every native kernel,
called one by one instead of played from tape, to see how the layers' time is divided.
`schedule` and `update` are not in it: they run in another process, beside the step before.

Prefill: one prompt end to end, by turns with the same matrix products alone, one after another, on
activations of the same shapes: by the engine's kernels and by torch.

`--save` keeps the figures; `--beside` draws those of another version next to these.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from driver import Driver, embedded_model, make_request, random_tokens, say
from machine import describe, probe, row

from octavo.scheduler.config import SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker

OTHER = "norms, rotary, SiLU"
NAMES = ["matrix products", "output head", "attention", OTHER, "sampling", "Python"]
IN_LAYERS = [NAMES[0], "attention", OTHER]
LAYERS, WHOLE = "layers", "whole"
STEPS, WARM_UP = 40, 4
PREFILLS, PREFILL_WARM_UP = 15, 2

Seconds = dict[str, float]


@dataclass(slots=True)
class Clock:
    """Adds up the seconds inside calls, by part, for as long as it runs."""

    spent: Seconds = field(default_factory=lambda: defaultdict(float))

    def wrap(self, call: Callable[..., Any], part: Callable[..., str]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.spent[part(*args)] += time.perf_counter() - start

        return timed


@contextmanager
def watch(worker: Worker, clock: Clock, one_by_one: bool) -> Iterator[None]:
    """Puts the clock around sampling, and around the tape or, `one_by_one`, into every kernel."""
    kernels: Any = worker.kernels
    model: Any = worker._model
    sampler: Any = worker._sampler
    library = kernels._library
    vocabulary = worker.model_config.vocab_size
    before = vars(kernels).copy(), sampler.sample, library.octavo_play

    def part_of(name: str) -> Callable[..., str]:
        if name == "_linear":  # the call's arguments: see csrc/octavo.h
            return lambda *args: "output head" if args[6] >= vocabulary else NAMES[0]
        return lambda *args: "attention" if name == "_attention" else OTHER

    for name, value in list(vars(kernels).items()):
        kernel = isinstance(value, ctypes._CFuncPtr)  # type: ignore[attr-defined]
        if kernel and (one_by_one or name == "_linear"):  # the head is not on the tape
            setattr(kernels, name, clock.wrap(value, part_of(name)))
    if one_by_one:
        kernels.record = lambda calls: calls()
        model._tapes.clear()
    library.octavo_play = clock.wrap(library.octavo_play, lambda *args: LAYERS)
    sampler.sample = clock.wrap(sampler.sample, lambda *args: "sampling")
    yield
    vars(kernels).clear()
    vars(kernels).update(before[0])
    sampler.sample, library.octavo_play = before[1:]
    model._tapes.clear()


def open_worker(args: argparse.Namespace, tokens: int) -> tuple[Worker, Driver]:
    """A worker with room for steps of `tokens` tokens."""
    size = 16
    length = args.context + 4 * STEPS + size
    blocks = (max(args.batch) * length + tokens) // size + 64
    config = WorkerConfig(
        str(args.model),
        dtype="bfloat16",
        block_size=size,
        num_blocks_override=blocks,
        max_num_batched_tokens=tokens,
        max_num_seqs=max(args.batch),
        swap_space=0,
        num_threads=args.threads,
    )
    worker = Worker(config)
    limits = SchedulerConfig(
        max(length, tokens + 8),
        block_size=size,
        max_num_batched_tokens=tokens,
        max_num_seqs=max(args.batch),
        enable_prefix_caching=False,
    )
    return worker, Driver(worker, limits)


def decode(
    driver: Driver, worker: Worker, batch: int, context: int, one_by_one: bool
) -> list[Seconds]:
    """What was spent in each of STEPS steps in which `batch` requests decode, and `WHOLE`; the
    requests are run to the end."""
    name = f"{batch}/{one_by_one}"
    driver.add(
        make_request(f"{name}/{i}", random_tokens(context, f"{name}/{i}"), STEPS + 16)
        for i in range(batch)
    )
    while driver.scheduler.num_waiting or driver.scheduler.num_running < batch:
        driver.step()
    model: Any = worker._model
    while batch not in {tokens for tokens, *_ in model._tapes}:  # all decode, and are recorded
        driver.step()
    clock, found = Clock(), list[Seconds]()
    execute = worker.execute

    def timed(raw: bytes) -> bytes | None:
        clock.spent.clear()
        start = time.perf_counter()
        answer = execute(raw)
        found.append({**clock.spent, WHOLE: time.perf_counter() - start})
        return answer

    worker.execute = timed  # type: ignore[method-assign]
    with watch(worker, clock, one_by_one):
        for _ in range(WARM_UP + STEPS):
            driver.step()
    worker.execute = execute  # type: ignore[method-assign]
    driver.run()
    return found[WARM_UP:]


def divide(driver: Driver, worker: Worker, batch: int, context: int) -> Seconds:
    """Seconds of a decode step's parts; the step is their sum."""

    def median(steps: list[Seconds], name: str) -> float:
        return statistics.median(step.get(name, 0.0) for step in steps)

    played = decode(driver, worker, batch, context, False)
    single = decode(driver, worker, batch, context, True)
    kernels = {name: median(single, name) for name in IN_LAYERS}
    layers, total = median(played, LAYERS), sum(kernels.values())
    parts = {name: layers * spent / total for name, spent in kernels.items()}
    parts |= {name: median(played, name) for name in ("output head", "sampling")}
    parts["Python"] = median(played, WHOLE) - sum(parts.values())
    return parts


def products(worker: Worker, tokens: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Two ways to compute all matrix products of a step of `tokens` tokens, but for the head, one
    after another: ours, and torch's with weights of the same shapes."""
    model: Any = worker._model
    weights = [
        replace(linear.weight, gated=False)  # in any order it takes as long
        for layer in model.weights.layers
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
    ]
    inputs = {w.inputs: torch.randn(tokens, w.inputs).to(worker.dtype) for w in weights}
    outs = {w.outputs: torch.empty(tokens, w.outputs, dtype=worker.dtype) for w in weights}
    plain = [torch.randn(w.outputs, w.inputs).to(worker.dtype) for w in weights]

    def ours() -> None:
        for weight in weights:
            x, out = inputs[weight.inputs], outs[weight.outputs]
            worker.kernels.linear(x, weight, None, out)

    def torchs() -> None:
        for weight in plain:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return ours, torchs


def prefill(driver: Driver, worker: Worker, tokens: int) -> list[tuple[float, float, float]]:
    """Seconds from a prompt to its first token in one step, of its products alone, and of these by
    torch: by turns, as the machine's speed changes from second to second."""
    ours, torchs = products(worker, tokens)

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    found = []
    for turn in range(-PREFILL_WARM_UP, PREFILLS):
        driver.add([make_request(f"prefill{turn}", random_tokens(tokens, f"prefill{turn}"), 1)])
        found.append((driver.run(), seconds(ours), seconds(torchs)))
    return found[PREFILL_WARM_UP:]


def draw(file: Path, sides: dict[str, dict[str, Seconds]]) -> None:
    """Stacked bars: a row for each version and batch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [(batch, side) for batch in next(iter(sides.values())) for side in sides]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.5 * len(bars)))
    for y, (batch, side) in enumerate(reversed(bars)):
        left = 0.0
        for index, name in enumerate(NAMES):
            width = sides[side][batch].get(name, 0.0) * 1e3
            label = name if y == 0 else None
            axes.barh(y, width, left=left, color=f"C{index}", label=label)
            left += width
        axes.text(left, y, f" {left:.1f} ms", va="center")
    axes.set_yticks(range(len(bars)), [f"{side}, {batch} rows" for batch, side in reversed(bars)])
    axes.set_xlabel("ms of a decode step")
    axes.margins(x=0.12)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=2048, help="tokens to prefill in one step")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--beside", type=Path, help="what --save kept of another version")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    print(describe(), "\n")
    worker, driver = open_worker(args, args.prompt)
    found: dict[str, Seconds] = {}
    print(row("rows", "step, ms", *(f"{name}, ms" for name in NAMES), "Python, %", "probe"))
    print(row(*["---"] * (len(NAMES) + 4)))
    for batch in args.batch:
        say(f"{batch} rows")
        speed = probe(args.threads)
        parts = found[str(batch)] = divide(driver, worker, batch, args.context)
        total = sum(parts.values())
        cells = [f"{parts[name] * 1e3:.2f}" for name in NAMES]
        share = f"{100 * parts['Python'] / total:.0f}"
        print(row(batch, f"{total * 1e3:.2f}", *cells, share, speed), flush=True)
    say("a prompt")
    turns = prefill(driver, worker, args.prompt)
    whole, alone, torchs = (1e3 * statistics.median(column) for column in zip(*turns, strict=True))
    shares = [statistics.median(100 * turn[i] / turn[0] for turn in turns) for i in (1, 2)]
    print(
        f"\nA prompt of {args.prompt:,} tokens, medians of {PREFILLS}: {whole:.0f} ms to its first "
        f"token; its matrix products alone {alone:.0f} ms, by torch {torchs:.0f}: in the same turn "
        f"{shares[0]:.0f} and {shares[1]:.0f} % of it. {probe(args.threads)}"
    )
    if args.save:
        args.save.write_text(json.dumps(found))
    if args.plot:
        sides = {"now": found}
        if args.beside:
            sides = {"before": json.loads(args.beside.read_text())} | sides
        draw(args.plot, sides)


if __name__ == "__main__":
    main()
