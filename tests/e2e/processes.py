"""Which processes are Ray's actors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil  # type: ignore[import-untyped]


def actors_among(processes: Iterable[psutil.Process], kind: str) -> list[psutil.Process]:
    """Those of Ray actors whose title begins like this."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "".join(process.cmdline()[:1]).startswith(f"ray::{kind}"):
                found.append(process)
    return found
