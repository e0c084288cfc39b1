"""Requests with texts of their own: what a user wrote down, and ShareGPT's conversations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from octavo.cluster.traces.files import json_lines, opened, whole_number, wrong
from octavo.cluster.traces.lengths import usable
from octavo.cluster.traces.request import Piece, Request

Count = Callable[[str], int]
"""How many tokens a text has."""
Wrap = Callable[[str], str]
"""What is sent of a text that is to be answered: the model's chat template around it."""


def read_custom(
    path: Path, output_len: int | None, count: Count | None, wrap: Wrap | None = None
) -> Iterator[Request]:
    """JSON lines with a `prompt`, and with `output_tokens` where `output_len` is None. Without
    `count` the server alone knows how long the prompts are."""
    for line, row in json_lines(path):
        text = row.get("prompt")
        if not isinstance(text, str) or not text:
            raise wrong(f"{path}, line {line}: prompt must be a text, got {text!r}")
        if output_len is None and "output_tokens" not in row:
            raise wrong(f"{path}, line {line} has no output_tokens; set --custom-output-len")
        output = output_len or whole_number(row["output_tokens"], "output_tokens", path, line)
        text = text if wrap is None else wrap(text)
        pieces = () if count is None else (Piece(f"row {line}", count(text)),)
        yield Request(pieces, max(1, output), text=text)


def read_sharegpt(
    path: Path, output_len: int | None, count: Count, shuffle: random.Random | None = None
) -> Iterator[Request]:
    """The first question and the length of its answer, of each conversation in ShareGPT's JSON that
    vLLM's benchmark would take. Shuffled before tokens are counted, which takes long."""
    with opened(path) as text:
        try:
            entries = json.load(text)
        except ValueError as error:
            raise wrong(f"{path} is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise wrong(f"{path} is no list of conversations")
    if shuffle is not None:
        shuffle.shuffle(entries)
    for number, entry in enumerate(entries):
        turns: list[Any] = entry.get("conversations", []) if isinstance(entry, dict) else []
        if len(turns) < 2:
            continue
        try:
            question, answer = str(turns[0]["value"]), str(turns[1]["value"])
        except (KeyError, TypeError):
            raise wrong(f"{path}: conversation {number} has a turn without value") from None
        prompt = count(question)
        output = output_len or count(answer)
        if usable(prompt, output, output_given=output_len is not None):
            yield Request((Piece(f"conversation {number}", prompt),), output, text=question)
