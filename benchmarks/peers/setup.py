"""What all sides of a run have in common."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from peers.environments import VllmPlace

QUESTIONS = (
    "What is the capital of France?",
    "What is the largest planet in our solar system?",
    "Write one sentence about the sea.",
)
ANSWER_TOKENS = 32
VLLM_CACHE_GIB = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """`model` is a bfloat16 directory in Hugging Face's layout; `threads` each side's."""

    model: Path
    threads: int
    logs: Path
    vllm_eager: bool

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def vllm_environment(setup: Setup, place: VllmPlace) -> dict[str, str]:
    """One thread on each of the first `threads` processors, none reserved for anything else. Where
    this process finds its own packages is nothing to vLLM."""
    processors = sorted(os.sched_getaffinity(0))[: setup.threads]
    return {
        "PYTHONPATH": "",
        "LD_PRELOAD": ":".join(place.preload),
        "VLLM_CACHE_ROOT": str(place.folder / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
