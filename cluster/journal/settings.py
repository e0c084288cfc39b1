"""Where an engine records, if it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOURNAL_BYTES = 256 * 2**20
LEAST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """One engine's file, and how much there may be about. `replica` is its name, if it has one."""

    path: Path
    most_bytes: int = JOURNAL_BYTES
    replica: str = ""
