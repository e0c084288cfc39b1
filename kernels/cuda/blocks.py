"""Moves whole blocks within a device: copies, and the gathering and scattering around a transfer.

A block is one contiguous chunk over all layers, so a block is copied to the host as it is where it
is large. Where blocks are small, many of them cross sooner as one: gathered, sent, scattered
(`octavo.workers.crossing` decides).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.cuda.options import FUSED

CHUNK = 4096  # words, for one program


@triton.jit
def _move(
    source,
    target,
    sources,
    targets,
    index_stride,
    words,
    SOURCES: tl.constexpr,
    TARGETS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Block `sources[i]` of `source`, or the i-th, to `targets[i]` of `target`, or the i-th."""
    item = tl.program_id(0).to(tl.int64)
    of = tl.load(sources + item * index_stride) if SOURCES else item
    to = tl.load(targets + item * index_stride) if TARGETS else item
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    word = tl.load(source + of * words + at, mask=at < words)
    tl.store(target + to * words + at, word, mask=at < words)


def copy(cache: Tensor, pairs: Tensor) -> None:
    """`Kernels.copy_blocks`."""
    _launch(cache, cache, pairs[:, 0], pairs[:, 1])


def gather(cache: Tensor, blocks: Tensor, out: Tensor) -> None:
    """`Kernels.gather_blocks`."""
    _launch(cache, out, blocks, None)


def scatter(staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
    """`Kernels.scatter_blocks`."""
    _launch(staged, cache, None, blocks)


def _launch(source: Tensor, target: Tensor, sources: Tensor | None, targets: Tensor | None) -> None:
    index = sources if sources is not None else targets
    assert index is not None
    words, others = _words(source), _words(target)
    if words.shape[1] != others.shape[1] or index.dtype is not torch.int64:
        raise ValueError(
            f"blocks of {list(source.shape[1:])} and {list(target.shape[1:])} need to be alike, "
            f"and their numbers int64, not {index.dtype}"
        )
    if len(index):
        _move[len(index), triton.cdiv(words.shape[1], CHUNK)](
            words,
            others,
            sources if sources is not None else index,
            targets if targets is not None else index,
            index.stride(0),
            words.shape[1],
            SOURCES=sources is not None,
            TARGETS=targets is not None,
            CHUNK=CHUNK,
            **FUSED,
        )


def _words(blocks: Tensor) -> Tensor:
    """`[n, words]` of 4 bytes, or of one where a block is no whole number of them."""
    if not blocks.is_contiguous():
        raise ValueError(f"whole blocks must be contiguous, not of strides {blocks.stride()}")
    flat = blocks.view(len(blocks), -1)
    whole = flat.shape[1] * flat.element_size() % 4 == 0
    return flat.view(torch.int32 if whole else torch.uint8)
