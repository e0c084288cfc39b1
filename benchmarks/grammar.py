"""What a grammar costs: decode steps with and without one, turn by turn.

    python benchmarks/grammar.py [--batch 1 16 64] [--steps 20] [--threads N] [--model DIRECTORY]

The real worker and scheduler in this process, one plan in flight; greedy, so that without a grammar
choosing is as cheap as can be. Every row follows the JSON schema of a list that never ends. Shown
are medians over the steps: the whole step; what is found on the thread of the masks, which runs
beside the model; what the step waits for it at its end; and putting the masks on the logits.
Preparing and trying a schema, as the ingress does it, is shown for one of 3 and one of 100 fields.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver import Driver, embedded_model, make_request, random_tokens, say
from machine import describe, probe, row

from octavo.cluster.text.grammars import Grammars
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.grammar import Grammar
from octavo.workers.config import WorkerConfig
from octavo.workers.forbidding import Forbidding
from octavo.workers.worker import Worker

CONTEXT = 64
ENTRY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "country": {"enum": ["France", "Japan", "Brazil", "Kenya"]},
        "people": {"type": "integer", "minimum": 0},
    },
    "required": ["city", "country", "people"],
    "additionalProperties": False,
}
ENDLESS = Grammar("json", json.dumps({"type": "array", "items": ENTRY, "minItems": 900}))
FIELD = {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "array", "items": ENTRY}]}
WIDE = {"type": "object", "properties": {f"field_{i}": FIELD for i in range(100)}}
WARM_UP, TURNS = 8, 4
Times = dict[str, list[float]]


def timed(call: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def clocked(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            times.append(time.perf_counter() - start)

    return clocked


def watch(worker: Worker) -> Times:
    """Puts clocks around the parts of the masks."""
    times: Times = {"find": [], "wait": [], "put": []}
    masks: Any = worker._masks
    masks._find = timed(masks._find, times["find"])
    masks.forbid = timed(masks.forbid, times["wait"])  # less what putting takes
    apply = timed(Forbidding.apply, times["put"])
    Forbidding.apply = lambda self, logits: apply(self, logits)  # type: ignore[method-assign]
    return times


def measure(driver: Driver, times: Times, batch: int, steps: int, grammar: Grammar | None) -> Times:
    """Seconds of each step's parts, for `batch` rows."""
    more: dict[str, Any] = {} if grammar is None else {"grammar": grammar, "stop_token_ids": (2,)}
    output = steps + WARM_UP
    driver.add(
        make_request(f"{i}", random_tokens(CONTEXT, f"{i}"), output, **more) for i in range(batch)
    )
    while driver.scheduler.num_waiting or any(
        group.sequences[0].generated < WARM_UP for group in driver.scheduler.groups
    ):
        driver.step()
    for parts in times.values():
        parts.clear()
    whole: list[float] = []
    step = timed(driver.step, whole)
    while len(driver.scheduler.live_requests) == batch:
        step()
    while driver.scheduler.live_requests:
        driver.step()
    return {"step": whole, **{name: parts.copy() for name, parts in times.items()}}


def median(times: list[float]) -> float:
    """Milliseconds."""
    return statistics.median(times) * 1e3 if times else 0.0


def prepare(directory: Path) -> None:
    """How long the ingress is busy with a schema that it has not seen."""
    grammars = Grammars(Tokenizer.load(directory))
    start = time.perf_counter()
    grammars.check_now("grammar", Grammar("regex", "a"))
    say(f"vocabulary, once: {(time.perf_counter() - start) * 1e3:.0f} ms")
    for name, schema in (("3 fields", ENTRY), ("100 fields", WIDE)):
        took = []
        for number in range(5):
            grammar = Grammar("json", json.dumps({**schema, "title": f"{number}"}))
            start = time.perf_counter()
            grammars.check_now("grammar", grammar)
            took.append(time.perf_counter() - start)
        say(f"schema of {name}: {median(took):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=20, help="in each of four turns")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    directory = args.model or embedded_model()
    say(describe())
    prepare(directory)
    length = CONTEXT + args.steps + WARM_UP
    blocks = max(args.batch) * -(-length // 16) + 1
    config = WorkerConfig(
        str(directory),
        max_num_batched_tokens=2048,
        num_blocks_override=blocks,
        swap_space=0,
        num_threads=args.threads,
    )
    worker = Worker(config)
    scheduling = SchedulerConfig(max_model_len=length, max_num_batched_tokens=2048)
    driver = Driver(worker, scheduling)
    times = watch(worker)
    print(row("rows", "without, ms", "with, ms", "found, ms", "waited, ms", "put, ms", "machine"))
    print(row(*["---"] * 7))
    for batch in args.batch:
        free, held = Times(), Times()
        for _ in range(TURNS):
            for parts, grammar in ((free, None), (held, ENDLESS)):
                for name, found in measure(driver, times, batch, args.steps, grammar).items():
                    parts.setdefault(name, []).extend(found)
        put = median(held["put"])
        cells = [median(free["step"]), median(held["step"]), median(held["find"])]
        cells += [max(0.0, median(held["wait"]) - put), put]
        print(row(batch, *(f"{cell:.2f}" for cell in cells), probe(args.threads)), flush=True)


if __name__ == "__main__":
    main()
