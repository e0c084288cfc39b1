"""Native kernel calls that are recorded once and played by one call, `csrc/play.cpp`.

A decode step makes nine calls a layer. Checking and handing over their arguments takes Python four
microseconds each, a tenth of a step of a small model, and gives up the interpreter's lock as often;
yet from step to step only the content of the tensors changes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.kernels.base import Batch

MOST_ARGUMENTS = 20  # as in csrc/play.cpp
Prepare = Callable[[Batch, Any], int]


class NativeTape:
    """`prepare` puts a batch where recorded calls look for it."""

    def __init__(self, library: ctypes.CDLL, prepare: Prepare) -> None:
        self._library = library
        self._prepare = prepare
        self._words = np.zeros((0, MOST_ARGUMENTS + 1), np.int64)
        self._calls: list[list[int]] = []

    def listen(self, function: Any) -> Callable[..., int | None]:
        """`function`, a native kernel, which is written down whenever it is called. Raises
        `ValueError` for one that cannot be played."""
        number = self._library.octavo_playable(function.__name__.encode())
        if number < 0:
            raise ValueError(f"{function.__name__} is not made to be played")
        kinds = function.argtypes

        def call(*arguments: Any) -> int | None:
            words = [_word(kind, value) for kind, value in zip(kinds, arguments, strict=True)]
            self._calls.append([number, *words, *[0] * (MOST_ARGUMENTS - len(words))])
            result: int | None = function(*arguments)
            return result

        return call

    def close(self) -> None:
        """Nothing more is recorded."""
        self._words = np.array(self._calls, np.int64).reshape(-1, MOST_ARGUMENTS + 1)
        self._calls = []

    def play(self, batch: Batch, cache: Any) -> None:
        self._prepare(batch, cache)
        if self._library.octavo_play(self._words.ctypes.data, len(self._words)):
            raise IndexError("positions are not all among those of the rotary table")


def _word(kind: Any, value: Any) -> int:
    """An argument's 64 bits, as a signed number."""
    if value is None:
        return 0
    if kind is ctypes.c_float:
        word: int = struct.unpack("<q", struct.pack("<fi", value, 0))[0]
        return word
    return int(value)
