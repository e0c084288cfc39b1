"""Lengths of real conversations: (prompt tokens, answer tokens), from a file or drawn.

The PagedAttention paper gives the means of its two data sets. Without a file, lengths are drawn
from a log-normal distribution with those means and medians of half of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from octavo.cluster.bench.datasets.files import csv_rows, whole_number, wrong

Length = tuple[int, int]

PAPER_MEANS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
LEAST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048


def read_lengths(path: Path) -> Iterator[Length]:
    """The first two columns of a CSV file with a header."""
    for line, row in csv_rows(path):
        if len(row) < 2:
            raise wrong(f"{path}, line {line}: there must be two columns, prompt and answer tokens")
        prompt = whole_number(row[0], "the first column", path, line)
        output = whole_number(row[1], "the second column", path, line)
        if prompt and output:
            yield prompt, output


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
    source = random.Random(f"lengths of {name}, {seed}")
    sigma = math.sqrt(2 * math.log(2))  # the mean is twice the median
    means = [math.log(mean / 2) for mean in PAPER_MEANS[name]]
    while True:
        prompt, output = (max(1, round(source.lognormvariate(mean, sigma))) for mean in means)
        yield prompt, output
