"""How the operating system backs a cache: a hint, never needed for right answers."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor


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
    if length <= 0:
        return False
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
