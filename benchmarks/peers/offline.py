"""Sides without a server, each in a process of its own that waits for its turn."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.client import Figures
from peers.environments import LlamaPlace, VllmPlace
from peers.processes import Running, ended_within
from peers.setup import ANSWER_TOKENS, Setup, vllm_environment
from peers.workloads import WARM_UP_SEED, Prompts, Workload, random_prompts

CHILD = Path(__file__).parent / "offline_child.py"
BENCH_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded Python library, asked a line at a time; see `offline_child.py`. `at_once` is how
    many requests it is given together: a static batch, or all of them."""

    name: str
    running: Running
    at_once: int

    def turn(self) -> AbstractContextManager[None]:
        return self.running.awake()

    def measure(self, workload: Workload, prompts: Prompts) -> Figures:
        answer = self._ask(prompts=prompts, output=workload.output, at_once=self.at_once)
        if answer["tokens"] != len(prompts) * workload.output:
            raise self.running.failure(f"gave {answer['tokens']} tokens, not all it was to give")
        return Figures(rate=answer["tokens"] / answer["seconds"])

    def warm_up(self) -> None:
        prompts = random_prompts(min(16, self.at_once), 128, WARM_UP_SEED)
        self._ask(prompts=prompts, output=8, at_once=self.at_once)

    def chat(self, question: str) -> str:
        return str(self._ask(question=question, output=ANSWER_TOKENS)["text"])

    def _ask(self, **question: Any) -> dict[str, Any]:
        self.running.say(json.dumps(question))
        answer: dict[str, Any] = json.loads(self.running.hear())
        return answer


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """llama.cpp's own benchmark: `at_once` sequences in step, prompts first, without sampling. It
    makes its prompts itself, and loads the model each time (which does not count)."""

    setup: Setup
    place: LlamaPlace
    at_once: int

    @property
    def name(self) -> str:
        return f"llama-batched-bench, {self.at_once}"

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def measure(self, workload: Workload, prompts: Prompts) -> Figures:
        length, threads = len(prompts[0]), str(self.setup.threads)
        context = self.at_once * (length + workload.output)
        options = ["-npp", str(length), "-ntg", str(workload.output), "-npl", str(self.at_once)]
        options += ["-c", str(context), "-t", threads, "-tb", threads, "--output-format", "jsonl"]
        program = self.place.program("llama-batched-bench")
        log = self.setup.logs / f"llama-batched-bench-{self.at_once}.log"
        with Running([program, "-m", self.place.model, *options], log) as running:
            if not ended_within(running, BENCH_SECONDS):
                raise running.failure("did not end")
            running.check()
            for line in log.read_text().splitlines():
                if line.startswith("{"):
                    return Figures(rate=self.at_once * workload.output / json.loads(line)["t"])
            raise running.failure("printed no figures")


@contextmanager
def octavo(setup: Setup) -> Iterator[list[Library]]:
    with _loaded("octavo", setup, Path(sys.executable), {}) as running:
        yield _ready(running, [Library("Octavo", running, sys.maxsize)])


@contextmanager
def vllm(setup: Setup, place: VllmPlace) -> Iterator[list[Library]]:
    environment = vllm_environment(setup, place)
    with _loaded("vllm", setup, place.python, environment) as running:
        yield _ready(running, [Library("vLLM", running, sys.maxsize)])


@contextmanager
def transformers(setup: Setup, sizes: Sequence[int]) -> Iterator[list[Library]]:
    with _loaded("transformers", setup, Path(sys.executable), {}) as running:
        sides = [Library(f"transformers, static {size}", running, size) for size in sizes]
        yield _ready(running, sides)


@contextmanager
def continuous(setup: Setup) -> Iterator[list[Library]]:
    with _loaded("continuous", setup, Path(sys.executable), {}) as running:
        yield _ready(running, [Library("transformers, continuous batching", running, sys.maxsize)])


@contextmanager
def _loaded(
    side: str, setup: Setup, python: Path, environment: dict[str, str]
) -> Iterator[Running]:
    setup.say(f"loading {side}")
    begin = time.monotonic()
    command = [
        python,
        "-P",
        CHILD,
        side,
        setup.model,
        "--threads",
        str(setup.threads),
    ]
    if setup.vllm_eager:
        command.append("--vllm-eager")
    threads = {"OMP_NUM_THREADS": str(setup.threads)}
    with Running(command, setup.logs / f"{side}.log", environment | threads, talks=True) as running:
        running.hear()
        setup.say(f"{side} is ready after {time.monotonic() - begin:.0f} s")
        yield running


def _ready(running: Running, sides: list[Library]) -> list[Library]:
    """Warm, and paused."""
    for side in sides:
        side.warm_up()
    running.pause()
    return sides
