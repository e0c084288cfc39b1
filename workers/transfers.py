"""Copies of whole blocks between the tiers of a GPU, in as few calls as their places allow.

A call costs microseconds of Python, as long as a small block takes over the bus, so neighbours that
go to neighbours are one copy, and copies are asked for by CUDA's own call where its library can be
found: torch's does much else. From CUDA 13 on, one call takes all copies of a step.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.workers.tiers import Pair

Move = tuple[int, int, int]  # source, target, number of blocks
Copy = Callable[[Tensor, Tensor, Iterable[Move]], None]
"""(sources, targets, moves): asks the current stream for copies of blocks of one contiguous uint8
tensor `[blocks, bytes]` to those of another; one of them is pinned memory, the other on the GPU."""

log = logging.getLogger("octavo.workers")

_ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses say which way
_IN_STREAM_ORDER = 1  # cudaMemcpySrcAccessOrderStream: sources are read when the stream gets there
_BATCHES_SINCE = 13  # the version of CUDA whose call for many copies has the arguments used here


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes. The hints are for memory that is managed, and ours is not."""

    _fields_ = [
        ("source_access_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


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


def cuda_copy(batched: bool = True) -> Copy:
    """By CUDA's runtime, the one that torch uses; torch's own where that is not found. `batched`
    has many copies asked for in one call, where there is one; no copy may then write what another
    of them reads or writes."""
    library = _runtime()
    if library is None:
        return torch_copy
    each, together = _copy_each(library), _call_for_many(library)
    return _copy_together(library, together, each) if batched and together else each


def how_copied() -> str:
    """What `cuda_copy` found, for people."""
    library = _runtime()
    if library is None:
        return "torch"
    return "libcudart, many in one call" if _call_for_many(library) else "libcudart, one by one"


def _call_for_many(library: Any) -> Any:
    known = _version() >= _BATCHES_SINCE
    return getattr(library, "cudaMemcpyBatchAsync", None) if known else None


def _copy_each(library: Any) -> Copy:
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


def _copy_together(library: Any, together: Any, each: Copy) -> Copy:
    """A driver that is older than the runtime may lack the call: then `each` is asked instead, and
    says what is wrong where something else is."""
    together.restype = ctypes.c_int
    together.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
    together.argtypes += [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_void_p]
    attributes, all_from_the_first = _Attributes(_IN_STREAM_ORDER), ctypes.c_size_t(0)
    refused = False

    def copy(sources: Tensor, targets: Tensor, moves: Iterable[Move]) -> None:
        nonlocal refused
        moves = list(moves)
        if len(moves) > 1 and not refused:
            blocks = np.array(moves, np.uint64) * np.uint64(sources.shape[1])
            start, into, sizes = np.ascontiguousarray(blocks.T)
            start += np.uint64(sources.data_ptr())
            into += np.uint64(targets.data_ptr())
            code = together(
                *(into.ctypes.data, start.ctypes.data, sizes.ctypes.data, len(moves)),
                *(ctypes.addressof(attributes), ctypes.addressof(all_from_the_first), 1),
                torch.cuda.current_stream().cuda_stream,
            )
            if not code:
                return
            refused = True
            library.cudaGetLastError()  # else torch takes it for the fault of its next call
            log.warning("CUDA refuses copies in one call (error %d): they are made singly", code)
        each(sources, targets, moves)

    return copy


def _runtime() -> ctypes.CDLL | None:
    """libcudart as it is loaded already; None where it goes by another name."""
    try:
        return ctypes.CDLL(f"libcudart.so.{_version()}") if _version() else None
    except OSError:
        return None


def _version() -> int:
    """Of the CUDA that torch is built for; 0 for none."""
    return int((torch.version.cuda or "0").partition(".")[0])
