"""Memory saved by sharing: figure 15 of the PagedAttention paper (Kwon et al. 2023), on its terms.

    python benchmarks/sharing.py [--sharegpt FILE] [--alpaca FILE] [--model [DIRECTORY]]

Requests of ShareGPT's and Alpaca's lengths, each with 2, 4 or 6 samples or beams, go through the
real scheduler with as many blocks as OPT-13B has in the paper. Shown are the blocks that are saved
by sharing, divided by those that would be held without, both as means over all steps: so the few
long answers at the end of a run weigh no more than they would under a steady load. All prompts
differ, so nothing but forks is shared.

Only memory counts, and samples share the same blocks whatever they say, so the null worker computes
the steps. Beams are another matter: which of them survive is a property of the model. The null
model's survive at random; with `--model`, the embedded model (or the one in DIRECTORY) continues
pieces of English text, cut from Python's own reference, on a smaller sample.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lengths
from driver import Driver, embedded_model, make_request, random_tokens, say
from lengths import Length
from machine import row

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.request import Request
from octavo.workers.member import Member
from octavo.workers.null import NullWorker

SIZES = (2, 4, 6)
# Of ShareGPT, the text has the ends of the range only.
PAPER = {
    ("sharegpt", "samples"): ("16.2", "between", "30.5"),
    ("sharegpt", "beams"): ("44.3", "between", "66.3"),
    ("alpaca", "samples"): ("6.1", "8.5", "9.8"),
    ("alpaca", "beams"): ("37.6", "53.1", "55.2"),
}
OPT_13B_BLOCKS = 15_728 // 16  # 12 GiB
STEP_TOKENS = 2048

Prompts = Callable[[int, str], list[int]]  # so many tokens, of this name
Run = tuple[str, str, Callable[[], Member], Prompts, int]  # model, samples or beams, …, requests


def saved_share(worker: Member, requests: list[Request], blocks: int) -> tuple[float, int]:
    """Blocks saved / blocks without sharing, by their means over steps, and the number of steps."""
    held: list[int] = []
    unshared: list[int] = []

    def look() -> None:
        use = measure_memory(driver.scheduler)
        held.append(use.blocks)
        unshared.append(use.unshared_blocks)

    config = SchedulerConfig(
        max_model_len=lengths.LONGEST,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_queued_reqs=len(requests),
    )
    driver = Driver(worker, config, look)
    driver.add(requests)
    driver.run()
    return 1 - sum(held) / sum(unshared), len(held)


def requests_of(kind: str, size: int, chosen: list[Length], prompts: Prompts) -> list[Request]:
    """`size` samples at temperature 1, or a beam search of that width."""
    many = {"beam_width": size} if kind == "beams" else {"n": size, "temperature": 1.0}
    return [
        make_request(f"r{i}", prompts(prompt, f"r{i}"), answer, **many, seed=i)
        for i, (prompt, answer) in enumerate(chosen)
    ]


def real_model(directory: Path, threads: int, blocks: int) -> tuple[Callable[[], Member], Prompts]:
    from pydoc_data.topics import topics

    from octavo.cluster.text.tokens import Tokenizer
    from octavo.workers.config import WorkerConfig
    from octavo.workers.worker import Worker

    text = Tokenizer.load(directory).encode("\n".join(topics.values()), add_special_tokens=False)
    config = WorkerConfig(
        str(directory),
        max_model_len=lengths.LONGEST,
        max_num_batched_tokens=STEP_TOKENS,
        num_blocks_override=blocks + 1,
        swap_space=0,
        num_threads=threads,
    )

    def piece(count: int, name: str) -> list[int]:
        start = random.Random(name).randrange(len(text) - count)
        return text[start : start + count]

    return partial(Worker, config), piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lengths.add_argument(parser, "sharegpt")
    lengths.add_argument(parser, "alpaca")
    parser.add_argument("--blocks", type=int, default=OPT_13B_BLOCKS, help="of 16 tokens")
    parser.add_argument("--requests", type=int, default=100, help="with the null worker")
    parser.add_argument("--model", type=Path, nargs="?", const=Path(), help="real beams as well")
    parser.add_argument("--model-requests", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    null = partial(NullWorker, 16, num_blocks=args.blocks + 1)
    runs: list[Run] = [
        ("null", kind, null, random_tokens, args.requests) for kind in ("samples", "beams")
    ]
    if args.model is not None:
        directory = embedded_model() if args.model == Path() else args.model
        real, text = real_model(directory, args.threads, args.blocks)
        runs.append((directory.name, "beams", real, text, args.model_requests))
    for name in ("sharegpt", "alpaca"):
        chosen = lengths.sample(name, getattr(args, name), args.requests)
        say(lengths.describe(name, getattr(args, name), chosen))
    print(row("lengths", "request", "model", "blocks saved, %", "paper, %", "requests", "steps"))
    print(row(*["---"] * 7))
    for name in ("sharegpt", "alpaca"):
        for model, kind, make, prompts, count in runs:
            chosen = lengths.sample(name, getattr(args, name), count)
            for size, paper in zip(SIZES, PAPER[name, kind], strict=True):
                say(f"{name}, {size} {kind}, {model}")
                requests = requests_of(kind, size, chosen, prompts)
                share, steps = saved_share(make(), requests, args.blocks)
                print(
                    row(name, f"{size} {kind}", model, f"{share:.1%}"[:-1], paper, count, steps),
                    flush=True,
                )


if __name__ == "__main__":
    main()
