"""Which kernels a device gets."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import torch

from octavo.kernels import build
from octavo.kernels.arguments import STORAGE
from octavo.kernels.base import Kernels
from octavo.kernels.cpu import CpuKernels, has_tiles
from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.torch_ops import TorchKernels

UNTILED_AMX_ROWS = 8
FP8_GPUS = (8, 9)  # compute capability from which Triton converts FP8 (e4m3): Ada, Hopper
NAMES = ("auto", "native", "triton", "torch", "reference")
INSTALL = "install octavo[cuda]"
TOOLKIT = Path("/usr/local/cuda")  # where CUDA's installer puts nvcc


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
    set, else the native ones, else (with a warning) the next best: torch's on a CPU, Triton's
    attention on a GPU.

    Raises ValueError for a name or a device without kernels, RuntimeError if `native` was asked
    for by name and cannot be built or is not installed. Whether FlashInfer's kernels compile shows
    later: see `CudaKernels`.
    """
    if name == "auto":
        name = os.environ.get("OCTAVO_KERNELS") or "auto"
    if name not in NAMES:
        raise ValueError(f"kernels {name!r} are not known: choose one of {', '.join(NAMES)}")
    if name == "reference":
        return ReferenceKernels()
    if name == "torch":
        return TorchKernels()
    if device.type == "cuda":
        return _on_gpu(device, name)
    if device.type != "cpu":
        raise ValueError(f"no kernels for device {str(device)!r}: use --device cpu or cuda")
    if name == "triton":
        raise ValueError("kernels 'triton' are for --device cuda: choose auto for the CPU's own")
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


def _on_gpu(device: torch.device, name: str) -> Kernels:
    """What only a GPU has is imported here, so that nobody else waits for it or needs it."""
    if not torch.cuda.is_available():
        raise ValueError(
            f"no kernels for device {str(device)!r}: torch finds no GPU here; {INSTALL}, with a "
            "torch for CUDA, on a machine that has one, or use --device cpu"
        )
    if find_spec("triton") is None:
        raise ValueError(
            f"no kernels for device {str(device)!r}: triton, which comes with torch for CUDA, is "
            f"not installed; {INSTALL}"
        )
    from octavo.kernels.cuda.kernels import CudaKernels

    if name == "triton":
        return CudaKernels(device)
    missing = missing_for_flashinfer()
    if missing is None:
        try:
            return CudaKernels(device, import_module("flashinfer"), required=name == "native")
        except (ImportError, OSError) as error:
            missing = f"flashinfer does not load ({error})"
    if name == "native":
        raise RuntimeError(f"the native kernels were asked for, but {missing}")
    build.log.warning("%s: attention runs on the slower Triton kernels", missing)
    return CudaKernels(device)


def missing_for_flashinfer() -> str | None:
    """Why FlashInfer cannot be used, and what to do; None where it can, as far as can be seen
    without trying. It compiles its kernels where they are first used, unless they came compiled."""
    if find_spec("flashinfer") is None:
        return f"flashinfer is not installed ({INSTALL})"
    compiles = os.environ.get("CUDA_HOME") or which("nvcc") or TOOLKIT.exists()
    if find_spec("flashinfer_jit_cache") is None and not compiles:
        return (
            "flashinfer needs nvcc to compile its kernels, and there is none (install the CUDA "
            "toolkit, or flashinfer-jit-cache)"
        )
    return None


def missing_for_fp8(kernels: Kernels, device: torch.device) -> str | None:
    """Why weights or a cache cannot be of FP8 there, as the end of a sentence; None if they can."""
    if kernels.name == "native":
        return "needs a GPU: the native kernels of CPUs read float32, bfloat16 and int8 alone"
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < FP8_GPUS:
        needed, has = (".".join(map(str, version)) for version in (FP8_GPUS, found))
        return f"needs a GPU of compute capability {needed} or higher, and this one has {has}"
    return None
