"""The C interface of `csrc/octavo.h`, as ctypes wants to know it."""

from __future__ import annotations

from ctypes import Structure, c_char_p, c_float, c_int, c_int64, c_void_p
from typing import Any

_TOKENS = [c_void_p, c_int64]
_LAYER = [c_void_p, c_int64, c_int64, c_int64]
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "octavo_check": (c_int, [c_void_p, c_int64]),
    "octavo_attention": (
        None,
        [c_int, c_void_p, *_LAYER, *_TOKENS, *_TOKENS, c_int64, c_float, c_int64, c_int],
    ),
    "octavo_write_kv": (None, [c_int, c_void_p, *_LAYER, *_TOKENS, *_TOKENS, c_int]),
    "octavo_rotary_write_kv": (
        c_int,
        [c_int, c_void_p, *_LAYER, *_TOKENS, c_int64, *_TOKENS, *_TOKENS]
        + [c_void_p, c_int64, c_void_p, c_int],
    ),
    "octavo_copy_blocks": (None, [c_void_p, c_int64, c_void_p, c_int64, c_int]),
    "octavo_rms_norm": (
        None,
        [c_int, c_void_p, *[c_int64] * 5, c_void_p, c_float, c_void_p, c_int64, c_int64, c_int],
    ),
    "octavo_add_rms_norm": (
        None,
        [c_int, *_TOKENS, *_TOKENS, c_int64, c_int64, c_void_p, c_float, *_TOKENS, c_int],
    ),
    "octavo_linear": (
        None,
        [c_int, *_TOKENS, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p]
        + [c_int, c_int, c_int, *_TOKENS, c_int],
    ),
    "octavo_silu_and_mul": (None, [c_int, *_TOKENS, *_TOKENS, c_int64, c_int64, c_int]),
    "octavo_argmax": (None, [c_int, *_TOKENS, c_int64, c_int64, c_void_p, c_void_p, c_int]),
    "octavo_has_tiles": (c_int, []),
    "octavo_playable": (c_int, [c_char_p]),
    "octavo_play": (c_int, [c_void_p, c_int64]),
}
PLAYED = (  # what a tape records
    *("_attention", "_write_kv", "_rotary_write_kv", "_linear"),
    *("_rms_norm", "_add_rms_norm", "_silu_and_mul"),
)


class BatchArrays(Structure):
    """`Batch` of `csrc/octavo.h`."""

    _fields_ = [
        ("qo_indptr", c_void_p),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("kv_last_page_len", c_void_p),
        ("slots", c_void_p),
        ("num_rows", c_int64),
        ("num_tokens", c_int64),
        ("num_indices", c_int64),
        ("block_size", c_int64),
    ]
