"""Reads GGUF, llama.cpp's single-file model format: metadata, tensor table, dequantised tensors.

Knows the container and three tensor encodings; knows nothing of any model. The file comes from
outside, so every count, length and offset is checked against the bytes that are there.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]
Floats = NDArray[np.float32]

MAX_DIMS = 4

_MAGIC = int.from_bytes(b"GGUF", "little")

_SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_SMALLEST_STRING = 8  # an empty one is its length alone
_SMALLEST_ENTRY = 8 + 4 + 1  # a metadata key's length, a type, a one-byte value
_SMALLEST_TENSOR = 8 + 4 + 4 + 8


class InvalidGguf(ValueError):
    """The bytes are not a GGUF file that this reader understands."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A tensor encoding: `block` is one unit of storage, which holds `weights` numbers."""

    name: str
    block: np.dtype[np.void]
    weights: int


_F32 = Encoding("F32", np.dtype([("w", "<f4")]), 1)
_Q4_1 = Encoding("Q4_1", np.dtype([("scale", "<f2"), ("low", "<f2"), ("q", "u1", 16)]), 32)
_Q8_0 = Encoding("Q8_0", np.dtype([("scale", "<f2"), ("q", "i1", 32)]), 32)
_ENCODINGS = {0: _F32, 3: _Q4_1, 8: _Q8_0}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is. `shape` is row-major (outermost first); `start` counts from the file's
    first byte."""

    shape: tuple[int, ...]
    encoding: Encoding
    start: int

    @property
    def blocks(self) -> int:
        return math.prod(self.shape) // self.encoding.weights


class Gguf:
    """A parsed file: `metadata` by key and `tensors` by name. Raises `InvalidGguf`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        cursor = _Cursor(data)
        magic, version, tensors, entries = cursor.unpack("IIQQ")
        if magic != _MAGIC or version not in (2, 3):
            raise InvalidGguf(f"not a GGUF file of version 2 or 3, it begins with {data[:8]!r}")
        self.metadata: dict[str, Value] = {}
        for _ in range(cursor.checked(entries, _SMALLEST_ENTRY)):
            key = cursor.string()
            self.metadata[key] = cursor.value()
        table = [_table_entry(cursor) for _ in range(cursor.checked(tensors, _SMALLEST_TENSOR))]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise InvalidGguf(f"general.alignment must be a power of two, got {alignment!r}")
        first = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, shape, encoding, offset in table:
            info = TensorInfo(shape, encoding, first + offset)
            end = info.start + info.blocks * encoding.block.itemsize
            if name in self.tensors or offset % alignment or end > len(data):
                raise InvalidGguf(f"tensor {name} is doubled, unaligned, or outside the file")
            self.tensors[name] = info

    def tensor(self, name: str) -> Floats:
        """The weights of `name` in float32, as a new array. Raises `KeyError` for other names."""
        info = self.tensors[name]
        stored = np.frombuffer(self._data, info.encoding.block, info.blocks, info.start)
        if info.encoding is _F32:
            weights = stored["w"].astype(np.float32)
        elif info.encoding is _Q8_0:
            weights = _column(stored, "scale") * stored["q"]
        else:  # low nibbles are the first half of a block's weights, high nibbles the second
            nibbles = np.concatenate([stored["q"] & 15, stored["q"] >> 4], axis=1)
            weights = _column(stored, "scale") * nibbles.astype(np.float32)
            weights += _column(stored, "low")
        return weights.reshape(info.shape)

    def integer(self, key: str) -> int:
        """A whole number from the metadata. Raises `InvalidGguf` where there is none."""
        value = self.metadata.get(key)
        if not isinstance(value, int):
            raise InvalidGguf(f"metadata {key} must be a whole number, got {value!r}")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings from the metadata. Raises `InvalidGguf` where there is none."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise InvalidGguf(f"metadata {key} must be a list of strings")
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) != len(value):
            raise InvalidGguf(f"metadata {key} must be a list of strings")
        return texts


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], Encoding, int]:
    name = cursor.string()
    (dims,) = cursor.unpack("I")
    if not 1 <= dims <= MAX_DIMS:
        raise InvalidGguf(f"tensor {name} has {dims} dimensions, at most {MAX_DIMS} are possible")
    shape = cursor.unpack(f"{dims}Q")[::-1]  # the file counts from the innermost dimension
    kind, offset = cursor.unpack("IQ")
    encoding = _ENCODINGS.get(kind)
    if encoding is None:
        known = ", ".join(known.name for known in _ENCODINGS.values())
        raise InvalidGguf(f"tensor {name} has encoding number {kind}; readable ones are {known}")
    if 0 in shape or shape[-1] % encoding.weights:
        raise InvalidGguf(f"tensor {name} of shape {shape} does not divide into {encoding.name}")
    return name, shape, encoding, offset


def _column(stored: NDArray[np.void], field: str) -> Floats:
    column: Floats = stored[field].astype(np.float32)[:, None]
    return column


class _Cursor:
    """Reads little-endian values in order and never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def checked(self, count: int, size: int) -> int:
        """`count`, if that many items of at least `size` bytes can follow."""
        left = len(self._data) - self.position
        if count * size > left:
            raise InvalidGguf(f"{count} items cannot be in the remaining {left} bytes")
        return count

    def unpack(self, layout: str) -> tuple[int, ...]:
        layout = "<" + layout
        size = self.checked(1, struct.calcsize(layout))
        values = struct.unpack_from(layout, self._data, self.position)
        self.position += struct.calcsize(layout) * size
        return values

    def string(self) -> str:
        (length,) = self.unpack("Q")
        start = self.position
        self.position += self.checked(length, 1)
        try:
            return self._data[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise InvalidGguf(f"text at byte {start} is not UTF-8: {error}") from None

    def value(self) -> Value:
        (kind,) = self.unpack("I")
        if kind != _ARRAY:
            return self._scalar(kind)
        kind, count = self.unpack("IQ")
        if kind == _STRING:
            return [self.string() for _ in range(self.checked(count, _SMALLEST_STRING))]
        layout = _scalar_format(kind)
        return list(self.unpack(f"{self.checked(count, struct.calcsize(layout))}{layout}"))

    def _scalar(self, kind: int) -> Scalar:
        return self.string() if kind == _STRING else self.unpack(_scalar_format(kind))[0]


def _scalar_format(kind: int) -> str:
    layout = _SCALAR_FORMATS.get(kind)
    if layout is None:
        raise InvalidGguf(f"metadata of type number {kind} is not readable")
    return layout
