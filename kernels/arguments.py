"""Tensors as the C interface takes them: addresses, and strides in bytes.

Each function raises `ValueError` or `TypeError` for a tensor that the kernels cannot read.
"""

from __future__ import annotations

import torch
from torch import Tensor

STORAGE = {torch.float32: 0, torch.bfloat16: 1}


def storage_of(*tensors: Tensor) -> int:
    """The C code of the dtype that all `tensors` share."""
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise TypeError(f"dtypes differ: {[t.dtype for t in tensors]}")
    if dtype not in STORAGE:
        raise TypeError(f"the CPU kernels store float32 or bfloat16, not {dtype}: use --dtype")
    return STORAGE[dtype]


def as_layer(cache: Tensor) -> tuple[int, int, int, int]:
    """Address, block stride in bytes, KV heads and head_dim of a layer's view."""
    _, _, kv_heads, block_size, head_dim = cache.shape
    block, *inner = cache.stride()
    cell = block_size * head_dim
    if inner != [kv_heads * cell, cell, head_dim, 1]:
        raise ValueError(f"a layer of a block must be contiguous, not of strides {inner}")
    if head_dim % 8:
        raise ValueError(f"head_dim must be a multiple of 8, not {head_dim}")
    return cache.data_ptr(), block * cache.element_size(), kv_heads, head_dim


def as_tokens(x: Tensor, shape: tuple[int, ...]) -> tuple[int, int]:
    """Address and token stride in bytes of `[num_tokens, heads, head_dim]`."""
    if x.shape != shape:
        raise ValueError(f"need shape {list(shape)}, not {list(x.shape)}")
    token, head, element = x.stride()
    if element != 1 or (head != shape[2] and shape[1] != 1):
        raise ValueError(f"a token's heads must be contiguous, not of strides {x.stride()}")
    return x.data_ptr(), token * x.element_size()


def as_matrix(x: Tensor) -> tuple[int, int]:
    """Address and row stride in bytes of `[rows, width]`."""
    row, element = x.stride()
    if element != 1:
        raise ValueError(f"a row must be contiguous, not of strides {x.stride()}")
    return x.data_ptr(), row * x.element_size()


def as_rows(x: Tensor) -> tuple[int, int, int, int]:
    """Sizes, then strides in bytes, of the outer two axes; of two axes, the second has size 1."""
    *outer, element = x.stride()
    if element != 1 or len(outer) not in (1, 2):
        raise ValueError(f"need 2 or 3 axes, the last contiguous, not strides {x.stride()}")
    token, head = outer if len(outer) == 2 else (outer[0], 0)
    heads = x.shape[1] if len(outer) == 2 else 1
    return x.shape[0], heads, token * x.element_size(), head * x.element_size()


def as_array(x: Tensor, dtype: torch.dtype) -> int:
    """Address of a whole tensor."""
    if x.dtype is not dtype or not x.is_contiguous():
        raise ValueError(f"need contiguous {dtype}, not {x.dtype} of strides {x.stride()}")
    return x.data_ptr()


def shapes_of(*tensors: Tensor) -> list[list[int]]:
    return [list(x.shape) for x in tensors]
