"""The host tier's memory: how much a rank takes, and the tensor that it is."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch
from torch import Tensor

from octavo.kernels.memory import mapped_zeros
from octavo.scheduler.errors import InvalidRequest

GIB = 2**30
UNASKED = 4 * GIB  # vLLM's default
CPU_SHARE = 0.1  # of the available memory, which also holds the weights and the device tier
CUDA_SHARE = 0.5


def host_bytes(asked: float | None, device: str, available: int, ranks: int) -> int:
    """Bytes of host memory that a rank takes, when the machine has `available` bytes for all its
    `ranks`. `asked` is GiB a rank. Raises `InvalidRequest` where there is not as much as was asked
    for; unasked, a rank on a GPU takes 4 GiB, and all ranks on a CPU take that together, but never
    more than a share of what is available."""
    if asked is None:
        if device == "cpu":
            return min(UNASKED, int(available * CPU_SHARE)) // ranks
        return min(UNASKED, int(available * CUDA_SHARE) // ranks)
    needed = int(asked * GIB)
    if needed * ranks > available:
        among = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise InvalidRequest(
            "swap_space",
            f"swap_space {asked:g} GiB{among} is more than the {available / GIB:.2f} GiB of memory "
            f"that this machine has available; set --swap-space to "
            f"{int(available / ranks / GIB)} or less",
        )
    return needed


class Registrar(Protocol):
    """What of CUDA's runtime pins memory; `torch.cuda.cudart()` is one. Each returns 0, or a code
    of what went wrong."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int: ...

    def cudaHostUnregister(self, address: int) -> int: ...


def host_blocks(
    num_blocks: int, block_bytes: int, device: torch.device, registrar: Registrar | None = None
) -> Tensor:
    """uint8 `[num_blocks, block_bytes]`; beside a CPU the system gives each page when it is first
    written, beside a GPU all are taken, and pinned, at once, for as long as the tensor lives."""
    memory = mapped_zeros(num_blocks * block_bytes)
    if device.type != "cpu" and len(memory):
        pin(memory, registrar or torch.cuda.cudart())  # type: ignore[no-untyped-call]
    return memory.view(num_blocks, block_bytes)


def pin(memory: Tensor, registrar: Registrar) -> None:
    """Registers all of `memory`, whole pages of it, with the GPU in one go: torch's own pinned
    memory would take the next power of two. Raises `InvalidRequest` where the system refuses."""
    address, size = memory.data_ptr(), memory.nbytes
    code = int(registrar.cudaHostRegister(address, size, 0))
    if code:
        raise InvalidRequest(
            "swap_space",
            f"the system does not let {size / GIB:.2f} GiB of host memory be pinned for the GPU "
            f"(CUDA error {code}); lower --swap-space, or raise the limit of locked memory "
            "(ulimit -l)",
        )
    weakref.finalize(memory.untyped_storage(), registrar.cudaHostUnregister, address)
