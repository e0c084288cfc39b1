"""Copies of whole blocks between the tiers of a GPU, in as few calls as their places allow.

A call costs microseconds of Python, as long as a small block takes over the bus, so neighbours that
go to neighbours are one call, and a call is CUDA's own where its library can be found: torch's does
much else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from octavo.workers.tiers import Pair

Move = tuple[int, int, int]  # source, target, number of blocks
Copy = Callable[[Tensor, Tensor, Iterable[Move]], None]
"""(sources, targets, moves): asks the current stream for copies of blocks of one contiguous uint8
tensor `[blocks, bytes]` to those of another; one of them is pinned memory, the other on the GPU."""

_ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses say which way


def runs(pairs: Iterable[Pair]) -> list[Move]:
    """The fewest copies that make these, in order."""
    found: list[Move] = []
    for source, target in pairs:
        if found:
            first, into, count = found[-1]
            if (source, target) == (first + count, into + count):
                found[-1] = (first, into, count + 1)
                continue
        found.append((source, target, 1))
    return found


def torch_copy(sources: Tensor, targets: Tensor, moves: Iterable[Move]) -> None:
    """By torch."""
    for source, target, count in moves:
        blocks = sources[source : source + count]
        targets[target : target + count].copy_(blocks, non_blocking=True)


def cuda_copy() -> Copy:
    """By CUDA's runtime, the one that torch uses; torch's own where that is not found."""
    library = _runtime()
    if library is None:
        return torch_copy
    memcpy = library.cudaMemcpyAsync
    memcpy.restype = ctypes.c_int
    memcpy.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def copy(sources: Tensor, targets: Tensor, moves: Iterable[Move]) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        size = sources.shape[1]
        start, into = sources.data_ptr(), targets.data_ptr()
        for source, target, count in moves:
            code = memcpy(
                into + target * size, start + source * size, count * size, _ANY_DIRECTION, stream
            )
            if code:
                raise RuntimeError(f"a copy between the tiers failed: CUDA error {code}")

    return copy


def _runtime() -> ctypes.CDLL | None:
    """libcudart as it is loaded already; None where it goes by another name."""
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        return ctypes.CDLL(f"libcudart.so.{major}") if major else None
    except OSError:
        return None
