"""Step plans written by hand: what a scheduler would send to generate from some prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo.scheduler.plan import Add, Grow, StepPlan, StepResult, Work, decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.worker import Worker

BLOCK_SIZE = 4
NUM_BLOCKS = 256
GREEDY = SamplingParams(temperature=0.0)


def generation_plans(
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    chunk: int = 10**6,
    sampling: Sequence[SamplingParams] | None = None,
    first_step: int = 0,
    tables: Sequence[list[int]] | None = None,
    computed: Sequence[int] | None = None,
) -> list[StepPlan]:
    """All prompts together, each at most `chunk` tokens a step, until each row (numbered as its
    prompt) has `new_tokens`; then all rows are dropped. Blocks are handed out in a scrambled order
    as they are needed, beyond those of `tables`, which hold `computed` tokens already."""
    pool = [block for block in range(1, NUM_BLOCKS) if not tables or block not in sum(tables, [])]
    random.Random(7).shuffle(pool)
    have = [len(table) for table in tables] if tables else [0] * len(prompts)
    done = list(computed) if computed else [0] * len(prompts)
    known = [len(prompt) for prompt in prompts]
    goal = [len(prompt) + new_tokens for prompt in prompts]
    adds = [
        Add(
            row,
            list(prompt),
            len(prompt),
            list(tables[row]) if tables else [],
            done[row],
            sampling[row] if sampling else GREEDY,
        )
        for row, prompt in enumerate(prompts)
    ]
    plans: list[StepPlan] = []
    while any(k < g for k, g in zip(known, goal, strict=True)):
        work, grow = [], []
        for row in range(len(prompts)):
            if known[row] == goal[row]:
                continue
            count = min(chunk, known[row] - done[row])
            sample = done[row] + count == known[row]
            work.append(Work(row, done[row], count, sample))
            done[row] += count
            known[row] += sample
            missing = -(-done[row] // BLOCK_SIZE) - have[row]
            if missing > 0:
                grow.append(Grow(row, [pool.pop() for _ in range(missing)]))
                have[row] += missing
        plans.append(StepPlan(first_step + len(plans), work, add=adds, grow=grow))
        adds = []
    plans.append(StepPlan(first_step + len(plans), [], drop=list(range(len(prompts)))))
    return plans


def run_plans(worker: Worker, plans: Sequence[StepPlan]) -> list[StepResult]:
    """The results, in order; empty on ranks other than 0."""
    raw = [worker.execute(encode(plan)) for plan in plans]
    return [decode_result(answer) for answer in raw if answer is not None]


def tokens_by_row(plans: Sequence[StepPlan], results: Sequence[StepResult]) -> dict[int, list[int]]:
    """The sampled tokens of each row."""
    found: dict[int, list[int]] = {}
    for plan, result in zip(plans, results, strict=True):
        sampling = [work.row for work in plan.work if work.sample]
        for row, token in zip(sampling, result.tokens, strict=True):
            found.setdefault(row, []).append(token)
    return found
