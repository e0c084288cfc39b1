"""Sizes as people write and read them."""

from __future__ import annotations

import re

from octavo.scheduler.config import Capacity

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_bytes(text: str) -> int:
    """`2GiB`, `512MB`, `1.5g` or a plain number of bytes; 1 MB is 10^6, 1 MiB is 2^20.

    Raises `ValueError` with a sentence.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 2GiB, 512MB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def show_bytes(count: int) -> str:
    """`1.50 GiB`, `37.5 MiB`, `512 B`."""
    for unit, size, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 1)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count} B"


def show_capacity(capacity: Capacity, max_model_len: int) -> str:
    """One line on how much the cache holds. The null block is not counted: nobody gets it."""
    host = f"; {capacity.num_host_blocks:,} more on the host" if capacity.num_host_blocks else ""
    return (
        f"cache: {capacity.usable_blocks:,} blocks of {capacity.block_size}, "
        f"{capacity.tokens:,} tokens; maximum concurrency for {max_model_len:,} tokens per "
        f"request: {capacity.tokens / max_model_len:.2f}x{host}"
    )
