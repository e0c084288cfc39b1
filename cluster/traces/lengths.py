"""Lengths of real conversations: (prompt tokens, answer tokens), from a file or drawn.

The PagedAttention paper (Kwon et al. 2023) gives the means of its two data sets. Without a file,
lengths are drawn from a log-normal distribution with those means and medians of half of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from octavo.cluster.traces.files import csv_header, csv_rows, whole_number, wrong

Length = tuple[int, int]

PAPER_MEANS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
LEAST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048

PROMPTS, ANSWERS = ("input", "prompt", "prefill"), ("output", "answer", "decode")
"""How names of columns begin."""


def read_lengths(path: Path) -> Iterator[Length]:
    """Of a CSV file with a header: its two columns, or of more those whose names begin with input
    and output, or prompt and answer."""
    header = csv_header(path)
    if len(header) == 2:
        columns = header
    else:
        columns = [_column(path, header, beginnings) for beginnings in (PROMPTS, ANSWERS)]
    for line, row in csv_rows(path, columns):
        prompt, output = (
            whole_number(value, name, path, line) for value, name in zip(row, columns, strict=True)
        )
        if prompt and output:
            yield prompt, output


def _column(path: Path, header: Sequence[str], beginnings: Sequence[str]) -> str:
    for beginning in beginnings:
        for name in header:
            if name.lower().startswith(beginning):
                return name
    raise wrong(
        f"{path} must have two columns, prompt and answer tokens, or a column whose name begins "
        f"with {' or '.join(beginnings)}; it has {', '.join(header) or 'no header'}"
    )


def first_turns(turns: Iterator[Length]) -> Iterator[Length]:
    """Of conversations turn by turn, whose prompts have the history, those that begin one: a prompt
    that is shorter than the turn before it and its answer. It is what the paper replays."""
    before = math.inf
    for prompt, output in turns:
        if prompt < before:
            yield prompt, output
        before = prompt + output


def usable(prompt: int, output: int, output_given: bool = False) -> bool:
    """Whether vLLM's benchmark of ShareGPT would take it: prompts of at most 1,024 tokens, 2,048
    with the answer, and neither below 4."""
    least = prompt if output_given else min(prompt, output)
    return least >= LEAST and prompt <= LONGEST_PROMPT and prompt + output <= LONGEST


def drawn(name: str, seed: int) -> Iterator[Length]:
    """Endless, by the paper's means of `sharegpt` or `alpaca`; some are not `usable`."""
    return log_normal(PAPER_MEANS[name], random.Random(f"lengths of {name}, {seed}"))


def log_normal(
    means: Sequence[float], source: random.Random, spread: float = 2.0
) -> Iterator[Length]:
    """Endless, with means `spread` times their medians; 1 makes all alike."""
    sigma = math.sqrt(2 * math.log(spread))
    medians = [mean / spread for mean in means]
    while True:
        prompt, output = (max(1, round(each * source.lognormvariate(0, sigma))) for each in medians)
        yield prompt, output
