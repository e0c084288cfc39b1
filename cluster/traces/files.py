"""Files of workloads, read a line at a time. What is wrong in one is a sentence with its line."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from octavo.scheduler.errors import InvalidRequest


@contextlib.contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The text of a file, unpacked where it ends in `.gz`. Raises `InvalidRequest` where it cannot
    be read, then or later."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open()
        ) as text:
            yield text
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise wrong(f"dataset_path {path} cannot be read: {why}") from None
    except UnicodeDecodeError:
        raise wrong(f"{path} is not a text file") from None


def first_line(path: Path) -> str:
    """What the file begins with. Raises `InvalidRequest` where it cannot be read."""
    with opened(path) as text:
        return text.readline().strip()


def csv_header(path: Path) -> list[str]:
    """Names of the columns; empty where the file is. Raises `InvalidRequest`."""
    return [name.strip() for name in next(csv.reader([first_line(path)]), [])]


def csv_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, list[str]]]:
    """Number of the line and fields of each row below the header: those of the named columns, or
    all. Raises `InvalidRequest` where a column is missing."""
    with opened(path) as text:
        rows = csv.reader(text)
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in columns or () if name not in header]
        if missing:
            raise wrong(
                f"{path} has no column {missing[0]!r}, it has {', '.join(header) or 'no header'}"
            )
        places = range(len(header)) if columns is None else [header.index(n) for n in columns]
        for row in rows:
            if not row:
                continue
            if len(row) < len(header):
                raise wrong(f"{path}, line {rows.line_num}: too few fields, {','.join(row)!r}")
            yield rows.line_num, [row[place] for place in places]


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of the line and object of each line that is not empty."""
    with opened(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise wrong(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(found, dict):
                raise wrong(f"{path}, line {number} is no JSON object: {line.strip()[:40]!r}")
            yield number, found


def whole_number(value: Any, what: str, path: Path, line: int) -> int:
    """The value as a number of tokens. Raises `InvalidRequest` where it is none."""
    try:
        number = int(float(value))
        if number != float(value) or number < 0:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise wrong(f"{path}, line {line}: {what} must be a whole number, got {value!r}") from None
    return number


def seconds(value: Any, what: str, path: Path, line: int) -> float:
    """The value as a time. Raises `InvalidRequest` where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise wrong(f"{path}, line {line}: {what} must be a number, got {value!r}") from None


def wrong(message: str) -> InvalidRequest:
    """A mistake in a file that the user named."""
    return InvalidRequest("dataset_path", message)
