"""Which kernels a device gets."""

from __future__ import annotations

import os

import torch

from octavo.kernels import build
from octavo.kernels.arguments import STORAGE
from octavo.kernels.base import Kernels
from octavo.kernels.cpu import CpuKernels, has_tiles
from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.torch_ops import TorchKernels

UNTILED_AMX_ROWS = 8
NAMES = ("auto", "native", "torch", "reference")


def torch_above(tiles: bool) -> dict[torch.dtype, int]:
    """Above how many rows torch's matrix products are faster than the native ones here.

    With AVX2, AVX-512 and AVX512-BF16 these were measured, and won at any number of rows. So they
    did with the tiles of AMX up to 512 rows, in a whole pass, where torch's threads take the cores
    from the kernels' own; at 2,048 rows torch won or lost by the minute. With AMX but without
    `tiles` (a compiler too old for them) torch has the better ones for many rows. Without vectors
    of eight numbers it is torch's libraries that know a machine, such as one by ARM.
    """
    if build.processor() not in build.VECTOR_FLAGS:
        return dict.fromkeys(STORAGE, 0)
    if build.processor() != "AMX" or tiles:
        return {}
    return {torch.bfloat16: UNTILED_AMX_ROWS}


def select(device: torch.device, name: str = "auto") -> Kernels:
    """The kernels for `device`. `name` is one of `NAMES`; `auto` means `OCTAVO_KERNELS` if that is
    set, else the native ones, else (with a warning) torch's.

    Raises ValueError for a name or a device without kernels, RuntimeError if `native` was asked
    for by name and cannot be built.
    """
    if name == "auto":
        name = os.environ.get("OCTAVO_KERNELS") or "auto"
    if name not in NAMES:
        raise ValueError(f"kernels {name!r} are not known: choose one of {', '.join(NAMES)}")
    if name == "reference":
        return ReferenceKernels()
    if name == "torch":
        return TorchKernels()
    if device.type != "cpu":
        raise ValueError(
            f"no kernels for device {str(device)!r}: those for CUDA come with the extra "
            "octavo[cuda] and are not built yet; use --device cpu"
        )
    library = build.library()
    if library is not None:
        try:
            return CpuKernels(library, torch_above(has_tiles(library)))
        except OSError as error:
            build.log.warning(
                "the native kernels do not load (%s): attention runs on the slower torch kernels; "
                "set OCTAVO_CACHE to a folder that may hold programs",
                error,
            )
    if name == "native":
        raise RuntimeError("the native kernels were asked for but could not be built: see above")
    return TorchKernels()
