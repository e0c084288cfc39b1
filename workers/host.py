"""The host tier's memory: how much a rank takes, and the tensor that it is."""

from __future__ import annotations

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


def host_blocks(num_blocks: int, block_bytes: int, device: torch.device) -> Tensor:
    """uint8 `[num_blocks, block_bytes]`. Pinned, and taken at once, beside a GPU; beside a CPU the
    system gives each page when it is first written."""
    if device.type != "cpu":
        return torch.empty((num_blocks, block_bytes), dtype=torch.uint8, pin_memory=True)
    return mapped_zeros(num_blocks * block_bytes).view(num_blocks, block_bytes)
