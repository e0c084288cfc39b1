"""Arrays on their way to the device, many in one copy, and marks in the device's line of work.

On a GPU all of it is asynchronous: the arrays go by way of pinned memory, which torch keeps until
the device has read it, and nothing here waits for the device unless it is asked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

ALIGNMENT = 64  # bytes, more than any kernel wants: none is compiled anew for an odd address
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class Packing:
    """Where arrays lie in one piece of memory: of some dtypes, and of at most some lengths."""

    def __init__(self, lengths: Sequence[int], dtypes: Sequence[np.dtype[Any]]) -> None:
        self.dtypes = list(dtypes)
        self.sizes = [n * d.itemsize for n, d in zip(lengths, dtypes, strict=True)]
        self.offsets = [0]
        for size in self.sizes:
            self.offsets.append(self.offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Packing:
        """Room for exactly these."""
        return cls([len(a) for a in arrays], [a.dtype for a in arrays])

    def fill(self, memory: npt.NDArray[np.uint8], arrays: Sequence[Array]) -> int:
        """Writes the arrays, contiguous ones of one axis, into `memory`; the bytes of it that are
        then in use. An array may be shorter than its room."""
        used = 0
        for array, size, offset in zip(arrays, self.sizes, self.offsets[:-1], strict=True):
            assert array.nbytes <= size, "an array is longer than its room"
            used = offset + array.nbytes
            memory[offset:used] = array.view(np.uint8)
        return used

    def views(self, memory: Tensor) -> list[Tensor]:
        """The arrays' whole rooms in uint8 `memory`, each with its own dtype."""
        return [
            memory[offset : offset + size].view(_DTYPES[dtype])
            for dtype, size, offset in zip(self.dtypes, self.sizes, self.offsets[:-1], strict=True)
        ]


def upload(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The arrays, contiguous ones of one axis, as tensors on `device`; on the CPU, their memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packing = Packing.of(arrays)
    staging = staged(packing.offsets[-1])
    packing.fill(staging.numpy(), arrays)
    return packing.views(staging.to(device, non_blocking=True))


def staged(size: int) -> Tensor:
    """uint8 `[size]` of pinned memory, which torch hands out anew when the copies from it that were
    asked for are done."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Mark(Protocol):
    """A place in the device's line of work."""

    def done(self) -> bool:
        """Whether the device has got there."""

    def wait(self) -> None:
        """Until it has. Other threads go on meanwhile."""


class Past:
    """On the CPU everything that was asked for has been done."""

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...


class StreamMark:
    """Behind all that the current stream of a GPU was given so far."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()


def mark(device: torch.device) -> Mark:
    """Here and now, in the line of work of the calling thread."""
    return Past() if device.type == "cpu" else StreamMark(device)
