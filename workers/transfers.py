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

Copy = Callable[[Tensor, Tensor], None]
"""(target, source): asks the current stream for a copy of uint8 memory of one length, one of them
pinned."""

_ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses say which way


def runs(pairs: Iterable[Pair]) -> list[tuple[int, int, int]]:
    """(source, target, number of blocks) of the fewest copies that make these, in order."""
    found: list[tuple[int, int, int]] = []
    for source, target in pairs:
        if found:
            first, into, count = found[-1]
            if (source, target) == (first + count, into + count):
                found[-1] = (first, into, count + 1)
                continue
        found.append((source, target, 1))
    return found


def copy_all(pairs: Iterable[Pair], sources: Tensor, targets: Tensor, copy: Copy) -> None:
    """Copies blocks of `sources` to blocks of `targets`, both `[blocks, bytes]`."""
    for source, target, count in runs(pairs):
        copy(targets[target : target + count], sources[source : source + count])


def torch_copy(target: Tensor, source: Tensor) -> None:
    """By torch."""
    target.copy_(source, non_blocking=True)


def cuda_copy() -> Copy:
    """By CUDA's runtime, the one that torch uses; torch's own where that is not found."""
    library = _runtime()
    if library is None:
        return torch_copy
    memcpy = library.cudaMemcpyAsync
    memcpy.restype = ctypes.c_int
    memcpy.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def copy(target: Tensor, source: Tensor) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        code = memcpy(target.data_ptr(), source.data_ptr(), target.nbytes, _ANY_DIRECTION, stream)
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
