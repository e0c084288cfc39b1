"""Whether all processes of a group run the same software: nodes are installed one by one.

Ray looks after Python's version and its own. Pure but for the look at what is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

Versions = Mapping[str, str]


def installed() -> Versions:
    """What matters, by package. How torch was built does not: `2.9.0+cpu` is `2.9.0`."""
    return {name: _version(name) for name in ("octavo", "torch")}


def odd_rank(scheduler: Versions, ranks: Sequence[Versions]) -> tuple[int, str] | None:
    """The first rank that does not fit the others, and how; None if all do. The scheduler has no
    use for torch, so its own may be any."""
    for rank, versions in enumerate(ranks):
        for package, theirs, others in (
            ("octavo", "the scheduler", scheduler["octavo"]),
            ("torch", "rank 0", ranks[0]["torch"]),
        ):
            if versions[package] != others:
                return rank, f"runs {package} {versions[package]}, and {theirs} {others}"
    return None


def _version(package: str) -> str:
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:  # a checkout on the path is as good
        return "of no known version"
