"""Output tokens a second without a server: Octavo's offline API beside transformers' `generate`.

64 random prompts of 128 tokens, 128 tokens out, greedy, end tokens ignored. Octavo gets all at
once; transformers runs them in static batches of 16. Both are loaded in processes of their own with
the same number of threads and take turns, three times each, with a probe of the machine's speed in
front of each turn. Each round has prompts of its own, so that no prefix cache helps.

    python benchmarks/throughput.py [--dtype bfloat16|float32] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from machine import describe, probe, row

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], int]

STATIC_BATCH = 16


def make_prompts(count: int, length: int, round: int) -> Prompts:
    source = random.Random(f"round {round}")
    return [[source.randrange(100, 40_000) for _ in range(length)] for _ in range(count)]


def octavo_side(model: Path, dtype: str, threads: int) -> Generate:
    from octavo import LLM, SamplingParams

    llm = LLM(str(model), dtype=dtype, num_threads=threads)

    def generate(prompts: Prompts, length: int) -> int:
        sampling = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def transformers_side(model: Path, dtype: str, threads: int) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def generate(prompts: Prompts, length: int) -> int:
        tokens = 0
        for start in range(0, len(prompts), STATIC_BATCH):
            batch = torch.tensor(prompts[start : start + STATIC_BATCH])
            output = loaded.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
            )
            tokens += output[:, batch.shape[1] :].numel()
        return tokens

    return generate


SIDES = {"Octavo": octavo_side, "transformers": transformers_side}


def take_turns(side: str, args: argparse.Namespace) -> None:
    """A child process: warms up, then measures once for each line on its standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not end up among the answers
    generate = SIDES[side](args.model, args.dtype, args.threads)
    generate(make_prompts(STATIC_BATCH, args.input, -1), 8)
    print("ready", file=answers, flush=True)
    for round, _ in enumerate(sys.stdin):
        prompts = make_prompts(args.requests, args.input, round)
        speed = probe(args.threads)
        start = time.perf_counter()
        tokens = generate(prompts, args.output)
        rate = tokens / (time.perf_counter() - start)
        print(
            json.dumps({"rate": rate, "tokens": tokens, "speed": speed}), file=answers, flush=True
        )


def start_child(side: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--side", side]
    for name in ("model", "dtype", "threads", "requests", "input", "output"):
        command += [f"--{name}", str(getattr(args, name))]
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"a side ended with status {child.wait()}")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        take_turns(args.side, args)
        return
    if args.model is None:
        from octavo.cluster.checkpoints.embedded import prepare

        args.model = prepare(on_progress=lambda line: print(line, file=sys.stderr))
    children = {side: start_child(side, args) for side in SIDES}
    for child in children.values():
        ask(child)
    turns: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side, child in children.items():
            assert child.stdin is not None
            child.stdin.write("measure\n")
            child.stdin.flush()
            turns[side].append(json.loads(ask(child)))
    for child in children.values():
        child.communicate()  # closes its input, at which it ends
    print(describe())
    print(row("side", "dtype, threads", "output tok/s, median (all)", "probes"))
    print(row("---", "---", "---", "---"))
    for side, results in turns.items():
        rates = [result["rate"] for result in results]
        shown = ", ".join(f"{rate:.0f}" for rate in rates)
        probes = "; ".join(str(result["speed"]) for result in results)
        median = f"{statistics.median(rates):.0f} ({shown})"
        print(row(side, f"{args.dtype}, {args.threads}", median, probes))


if __name__ == "__main__":
    main()
