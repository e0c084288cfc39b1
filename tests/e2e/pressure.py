"""Work that needs more blocks than there are, and the same work with plenty."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, RequestOutput, SamplingParams

LENGTH = 60
PROMPTS = [
    [random.Random(number).randrange(3, 512) for _ in range(5 + 7 * number)] for number in range(8)
]
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
SEEDED = GREEDY.replace(temperature=1, seed=7)
KINDS: Mapping[str, SamplingParams] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "four greedy samples": GREEDY.replace(n=4),
    "four seeded samples": SEEDED.replace(n=4),
    "beams": SamplingParams(beam_width=4, n=2, max_tokens=LENGTH, ignore_eos=True),
}
Answer = list[tuple[list[int], float | None]]
"""Tokens and score of each of a request's answers, in order."""


@dataclass(frozen=True)
class Counts:
    """What one run added to the engine's totals. Blocks, but for preemptions."""

    preemptions: int
    swaps: int
    fallbacks: int
    swapped_out: int
    swapped_in: int
    copied: int


def open_llm(model: Path, blocks: int, **settings: Any) -> LLM:
    """Blocks of 4 tokens, so that a small model fills many."""
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "block_size": 4}
    return LLM(model, num_gpu_blocks_override=blocks, num_threads=1, **(defaults | settings))


def totals(llm: LLM) -> Counts:
    measured = llm.stats().measured
    return Counts(
        measured.preemptions,
        measured.preemptions_swap,
        measured.swap_fallbacks,
        measured.blocks_swapped_out,
        measured.blocks_swapped_in,
        measured.blocks_copied,
    )


def run(
    llm: LLM, sampling: SamplingParams, prompts: list[list[int]] = PROMPTS
) -> tuple[list[Answer], Counts]:
    """The answers, and what it took."""
    before = totals(llm)
    answers = [answers_of(one) for one in llm.generate(prompts, sampling, use_tqdm=False)]
    after = totals(llm)
    fields = Counts.__dataclass_fields__
    return answers, Counts(*(getattr(after, name) - getattr(before, name) for name in fields))


def answers_of(output: RequestOutput) -> Answer:
    return [(one.token_ids, one.score) for one in output.outputs]


def assert_empty(llm: LLM) -> None:
    """Nothing is held on either tier."""
    stats = llm.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert (stats.blocks_used, stats.host_blocks_used) == (0, 0)
