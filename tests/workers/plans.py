"""Step plans written by hand: what a scheduler would send to generate from some prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo.scheduler.plan import (
    Add,
    Fork,
    Grow,
    Replace,
    StepPlan,
    StepResult,
    Work,
    decode_result,
    encode,
)
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
    prompt_lens: Sequence[int] | None = None,
    adapters: Sequence[str] | None = None,
) -> list[StepPlan]:
    """All prompts together, each at most `chunk` tokens a step, until each row (numbered as its
    prompt) has `new_tokens`; then all rows are dropped. Blocks are handed out in a scrambled order
    as they are needed, beyond those of `tables`, which hold `computed` tokens already. What is
    beyond `prompt_lens` counts as generated."""
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
            prompt_lens[row] if prompt_lens else len(prompt),
            list(tables[row]) if tables else [],
            done[row],
            sampling[row] if sampling else GREEDY,
            adapters[row] if adapters else "",
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


def fork_plans(
    prompt: Sequence[int],
    sampling: SamplingParams,
    seeds: Sequence[int],
    new_tokens: int,
    *,
    fork_at: int = 0,
) -> list[StepPlan]:
    """Row 0 has a child, rows 1, 2, …, for each of `seeds` when the token number `fork_at` is drawn
    (0: with the prompt). A last block that they share and that is not full is copied before the
    next is written."""
    pool = list(range(NUM_BLOCKS - 1, 0, -3))
    tables: list[list[int]] = [[]]
    plans = []
    done = 0
    for step in range(new_tokens):
        end = len(prompt) + step
        work, grow, fork, replace, copy = [], [], [], [], []
        if step == fork_at + 1 and done % BLOCK_SIZE:
            for row in range(1, len(tables)):
                copy.append((tables[row][-1], pool.pop()))
                tables[row][-1] = copy[-1][1]
                replace.append(Replace(row, len(tables[row]) - 1, tables[row][-1]))
        for row, table in enumerate(tables):
            work.append(Work(row, done, end - done, True))
            new = [pool.pop() for _ in range(-(-end // BLOCK_SIZE) - len(table))]
            if new:
                table += new
                grow.append(Grow(row, new))
        if step == fork_at:
            for row, seed in enumerate(seeds, start=1):
                fork.append(Fork(row, 0, seed))
                work.append(Work(row, end, 0, True))
                if grow:  # rows grow after they fork
                    grow.append(Grow(row, grow[0].blocks))
                tables.append(list(tables[0]))
        add = [] if step else [Add(0, list(prompt), len(prompt), [], 0, sampling)]
        plans.append(
            StepPlan(step, work, add=add, grow=grow, fork=fork, replace=replace, copy=copy)
        )
        done = end
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
