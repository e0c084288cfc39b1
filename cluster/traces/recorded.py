"""Recorded arrivals: when each request came, how long it was, and in some traces what it shared.

Rows are read one at a time and in the file's order; requests that got no answer are left out.
Arrivals are in seconds after the first row. `octavo bench` and `octavo simulate` both read by it.

- Azure: https://github.com/Azure/AzurePublicDataset, traces of 2023 and 2024
- BurstGPT: https://github.com/HPMLL/BurstGPT
- Mooncake: https://github.com/kvcache-ai/Mooncake, the FAST'25 traces; others have its format too,
  with blocks of another size
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from octavo.cluster.traces.files import (
    csv_header,
    csv_rows,
    first_line,
    json_lines,
    seconds,
    whole_number,
    wrong,
)
from octavo.cluster.traces.lengths import read_lengths
from octavo.cluster.traces.request import Piece, Request, alone

MOONCAKE_BLOCK = 512
MILLISECONDS = 0.001

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_any(path: Path, block_size: int | None = None) -> Iterator[Request]:
    """A trace in any of these formats, or a file of lengths: its first line tells which. Hash ids
    stand for `block_size` tokens, or for as many as the file suggests."""
    if first_line(path).startswith("{"):
        return read_timed(path, block_size or suggested_block(path), MILLISECONDS)
    names = set(csv_header(path))
    if names.issuperset(AZURE):
        return read_azure(path)
    if names.issuperset(BURSTGPT):
        return read_burstgpt(path)
    return alone(read_lengths(path))


def in_order(requests: Iterable[Request], count: int | None = None) -> list[Request]:
    """The first `count` of a file, or all, by the time at which they came."""
    return sorted(itertools.islice(requests, count), key=lambda each: each.arrival or 0.0)


def read_azure(path: Path) -> Iterator[Request]:
    """CSV with a date, prompt tokens and answer tokens."""
    first = None
    for line, (date, prompt, output) in csv_rows(path, AZURE):
        try:
            moment = datetime.datetime.fromisoformat(date)
        except ValueError:
            raise wrong(
                f"{path}, line {line}: TIMESTAMP must be a date such as 2023-11-16 18:17:03.98, "
                f"got {date!r}"
            ) from None
        first = first or moment
        prompt_len = whole_number(prompt, "ContextTokens", path, line)
        output_len = whole_number(output, "GeneratedTokens", path, line)
        if prompt_len and output_len:
            after = (moment - first).total_seconds()
            yield Request((Piece(f"row {line}", prompt_len),), output_len, after)


def read_burstgpt(path: Path) -> Iterator[Request]:
    """CSV with seconds, prompt tokens and answer tokens; answers of no tokens have failed."""
    first = None
    for line, (time, prompt, output) in csv_rows(path, BURSTGPT):
        moment = seconds(time, "Timestamp", path, line)
        first = moment if first is None else first
        prompt_len = whole_number(prompt, "Request tokens", path, line)
        output_len = whole_number(output, "Response tokens", path, line)
        if prompt_len and output_len:
            yield Request((Piece(f"row {line}", prompt_len),), output_len, moment - first)


def read_timed(path: Path, block_size: int, unit: float) -> Iterator[Request]:
    """JSON lines with `timestamp` (times `unit` seconds), `input_length`, `output_length` and
    `hash_ids`: one name for each block of the prompt, the last of which may be shorter. Equal names
    are equal tokens. Without hash ids a prompt shares nothing."""
    first = None
    for line, row in json_lines(path):
        for key in ("timestamp", "input_length", "output_length"):
            if key not in row:
                raise wrong(f"{path}, line {line} has no {key}, it has {', '.join(row)}")
        moment = seconds(row["timestamp"], "timestamp", path, line) * unit
        first = moment if first is None else first
        prompt_len = whole_number(row["input_length"], "input_length", path, line)
        output_len = whole_number(row["output_length"], "output_length", path, line)
        if not prompt_len or not output_len:
            continue
        ids = row.get("hash_ids") or []
        if not isinstance(ids, list):
            raise wrong(f"{path}, line {line}: hash_ids must be a list, got {ids!r}")
        pieces = _blocks(ids, prompt_len, block_size, path, line)
        yield Request(pieces or (Piece(f"row {line}", prompt_len),), output_len, moment - first)


def suggested_block(path: Path) -> int:
    """Tokens that a hash id of JSON lines stands for: the least power of two with which prompts fit
    into their blocks. The first prompt of several blocks leaves one to choose."""
    size = 1
    for line, row in json_lines(path):
        ids = row.get("hash_ids") or []
        length = whole_number(row.get("input_length"), "input_length", path, line)
        while ids and size * len(ids) < length:
            size *= 2
        if len(ids) > 1:
            break
    return size


def _blocks(
    ids: list[int | str], prompt_len: int, block_size: int, path: Path, line: int
) -> tuple[Piece, ...]:
    needed = -(-prompt_len // block_size)
    if ids and len(ids) != needed:
        raise wrong(
            f"{path}, line {line}: {prompt_len} tokens are {needed} block(s) of {block_size}, but "
            f"there are {len(ids)} hash_ids; set --timed-trace-chunk-hash-size to the tokens that "
            "one stands for"
        )
    rest = prompt_len - (needed - 1) * block_size
    sizes = [block_size] * (len(ids) - 1) + [rest]
    return tuple(Piece(name, size) for name, size in zip(ids, sizes, strict=False))
