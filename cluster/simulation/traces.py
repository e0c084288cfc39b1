"""Reads files of recorded requests: lengths, and where they are told, times and what is shared.

JSON lines   timestamp in ms, input_length, output_length, hash_ids: Mooncake's (FAST 2025);
             equal ids are equal blocks of tokens
CSV          TIMESTAMP, ContextTokens, GeneratedTokens: Azure's (Splitwise, ISCA 2024);
             Timestamp in seconds, …, Request tokens, Response tokens: BurstGPT's (KDD 2025);
             any two columns whose names begin with input and output, or prompt and answer
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.cluster.simulation.workload import Job, Length
from octavo.scheduler.errors import InvalidRequest

PROMPTS = ("contexttokens", "request tokens", "input", "prompt", "prefill")
ANSWERS = ("generatedtokens", "response tokens", "output", "answer", "decode")


class Trace:
    """`jobs` in the order of arrival; all at 0 where the file has no times."""

    def __init__(self, jobs: list[Job], timed: bool) -> None:
        self.jobs = jobs
        self.timed = timed

    @property
    def lengths(self) -> list[Length]:
        return [(job.prompt, job.answer) for job in self.jobs]


def read_trace(path: Path, most: int | None = None, block: int | None = None) -> Trace:
    """The first `most` requests that have a prompt and an answer. Blocks of a Mooncake file have
    `block` tokens, or as many as its lengths and ids suggest. Raises `InvalidRequest` with the
    line that is wrong."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            name = path.name.removesuffix(".gz")
            jobs, timed = (
                _read_jsonl(lines, block)
                if name.endswith((".jsonl", ".json"))
                else _read_csv(lines)
            )
    except OSError as error:
        raise _mistake(path, (error.strerror or str(error)).lower()) from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise _mistake(path, str(error)) from None
    if not jobs:
        raise _mistake(path, "no request in it has a prompt and an answer")
    jobs.sort(key=lambda job: job.at)
    start = jobs[0].at
    kept = [
        Job(number, job.at - start, job.prompt, job.answer, job.pieces)
        for number, job in enumerate(jobs[:most])
    ]
    return Trace(kept, timed)


def _mistake(path: Path, why: str) -> InvalidRequest:
    return InvalidRequest("dataset_path", f"--dataset-path {path} cannot be read: {why}")


def _read_jsonl(lines: Iterable[str], block: int | None) -> tuple[list[Job], bool]:
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            int(entry["input_length"]), int(entry["output_length"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no request with lengths ({error!r})") from None
        entries.append(entry)
    size = block or _block_size(entries)
    known: dict[Any, int] = {}  # ids may be of any size, or text
    jobs = []
    for entry in entries:
        prompt, answer = int(entry["input_length"]), int(entry["output_length"])
        ids = (known.setdefault(each, len(known)) for each in entry.get("hash_ids", ()))
        pieces = tuple((content, size) for content in ids)
        if prompt > 0 and answer > 0:
            jobs.append(Job(0, float(entry.get("timestamp", 0)) / 1e3, prompt, answer, pieces))
    return jobs, any("timestamp" in entry for entry in entries)


def _block_size(entries: Sequence[dict[str, Any]]) -> int:
    """The least power of two at which every prompt has room in its blocks."""
    size = 1
    for entry in entries:
        blocks = len(entry.get("hash_ids", ()))
        while blocks and size * blocks < int(entry["input_length"]):
            size *= 2
    return size


def _read_csv(lines: Iterable[str]) -> tuple[list[Job], bool]:
    rows = csv.reader(lines)
    header = [name.strip().lower() for name in next(rows, [])]
    prompt, answer = _column(header, PROMPTS), _column(header, ANSWERS)
    time = header.index("timestamp") if "timestamp" in header else None
    jobs = []
    for number, row in enumerate(rows, 2):
        try:
            at = 0.0 if time is None else _seconds(row[time])
            lengths = int(float(row[prompt])), int(float(row[answer]))
        except (ValueError, IndexError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if min(lengths) > 0:
            jobs.append(Job(0, at, *lengths))
    return jobs, time is not None


def _column(header: list[str], beginnings: tuple[str, ...]) -> int:
    for beginning in beginnings:
        for place, name in enumerate(header):
            if name.startswith(beginning):
                return place
    raise ValueError(f"none of its columns ({', '.join(header)}) is called {', '.join(beginnings)}")


def _seconds(text: str) -> float:
    """A number, or a date whose fractions may have seven digits."""
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.removesuffix("+00:00").partition(".")
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
