"""How the operating system backs a cache: hints, never needed for right answers."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading

import torch
from torch import Tensor

MADV_POPULATE_WRITE = 23  # of Linux 5.14, which Python has no name for
PIECE = 32 << 20  # bytes at a time, so that whoever unmaps the memory does not wait long
LEAST_URGENT = 19


def prefer_huge_pages(cache: Tensor) -> bool:
    """Asks for huge pages behind a CPU tensor; call it before anything is written there.

    Blocks lie scattered, so with small pages most block reads also miss in the page tables.
    Returns whether the system took the hint: only Linux knows it.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or cache.device.type != "cpu":
        return False
    first = -(-cache.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = cache.data_ptr() + cache.untyped_storage().nbytes() - first
    return length > 0 and _advise(first, length, advice)


def write_pages_soon(memory: Tensor, size: int) -> threading.Thread:
    """Has the system give the first `size` bytes of what `mapped_zeros` made, and clear them,
    before a step needs them: clearing a huge page takes half a millisecond, for which all threads
    wait. A thread that anything else may interrupt does it, and ends; where it can't, pages come
    when they are written."""

    def write() -> None:
        if sys.platform != "linux":
            return
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_URGENT)
        for at in range(0, size, PIECE):
            if not _advise(memory.data_ptr() + at, min(PIECE, size - at), MADV_POPULATE_WRITE):
                return

    thread = threading.Thread(target=write, name="octavo-pages", daemon=True)
    thread.start()
    return thread


def _advise(first: int, length: int, advice: int) -> bool:
    """Whether the system took it; threads run on meanwhile."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(first, length, advice) == 0)


def mapped_zeros(size: int) -> Tensor:
    """uint8 `[size]` of memory that the system gives when it is first written, in huge pages if it
    can. Private memory: of shared, `mmap`'s default, systems seldom give huge pages."""
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    prefer_huge_pages(memory)
    return memory
