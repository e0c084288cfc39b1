"""Octavo's own version, for those who need nothing else of the front."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def octavo_version() -> str:
    try:
        return version("octavo")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0+unknown"
