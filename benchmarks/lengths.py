"""Lengths of real conversations, from a CSV file of (prompt tokens, answer tokens) with a header.

ShareGPT's file has every turn of a conversation, with the history in its prompts: turns in order,
so one that is shorter than the turn before it and its answer begins a new conversation. First turns
come closest to what the PagedAttention paper replays. As in vLLM's benchmark of that data, prompts
of more than 1,024 tokens, sums of more than 2,048, and anything below 4 are left out.

Without a file, lengths are drawn from a log-normal distribution with the means that the paper gives
(161 and 338 tokens for ShareGPT, 19 and 58 for Alpaca) and medians of half of them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
from pathlib import Path

from octavo.cluster.traces.lengths import (
    LEAST,
    LONGEST,
    LONGEST_PROMPT,
    PAPER_MEANS,
    Length,
    first_turns,
    log_normal,
    read_lengths,
)


def add_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """`--sharegpt FILE` or `--alpaca FILE`; unasked, what OCTAVO_SHAREGPT or OCTAVO_ALPACA says."""
    variable = f"OCTAVO_{name.upper()}"
    given = os.environ.get(variable)
    parser.add_argument(
        f"--{name}",
        type=Path,
        default=Path(given) if given else None,
        help=f"CSV of lengths; unasked, ${variable}, and without it lengths are drawn",
    )


def sample(
    name: str, file: Path | None, count: int, *, scale: float = 1.0, seed: int = 0
) -> list[Length]:
    """`count` lengths in random order, scaled, all different rows as long as there are enough."""
    source = random.Random(seed)
    rows = _draw(name, source) if file is None else _read(file, name == "sharegpt")
    kept = [
        (prompt, answer)
        for prompt, answer in rows
        if min(prompt, answer) * scale >= LEAST
        if prompt <= LONGEST_PROMPT and prompt + answer <= LONGEST
    ]
    if not kept:
        raise SystemExit(f"{file} has no lengths that are of use")
    source.shuffle(kept)
    chosen = [kept[i % len(kept)] for i in range(count)]
    return [(int(prompt * scale), int(answer * scale)) for prompt, answer in chosen]


def describe(name: str, file: Path | None, lengths: list[Length], scale: float = 1.0) -> str:
    """Where lengths come from, and their means, in one line."""
    prompts, answers = zip(*lengths, strict=True)
    origin = "drawn by the paper's means" if file is None else file.name
    scaled = "" if scale == 1 else f", times {scale:g}"
    return (
        f"{name} ({origin}{scaled}): {len(lengths)} requests, mean prompt "
        f"{statistics.mean(prompts):.0f}, mean answer {statistics.mean(answers):.0f} tokens"
    )


def _read(file: Path, only_first: bool) -> list[Length]:
    rows = read_lengths(file)
    return list(first_turns(rows) if only_first else rows)


def _draw(name: str, source: random.Random) -> list[Length]:
    return list(itertools.islice(log_normal(PAPER_MEANS[name], source), 4096))
