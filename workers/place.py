"""Where a worker computes: the device, its kernels, and what carries blocks to the host."""

from __future__ import annotations

import logging

import torch

from octavo.kernels.base import Kernels
from octavo.kernels.select import select
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.copy_stream import CopyStream
from octavo.workers.copy_thread import CopyThread
from octavo.workers.tiers import Tiers

log = logging.getLogger("octavo.workers")


def tiers_on(device: torch.device) -> type[Tiers]:
    """What carries blocks between a device and the host."""
    return CopyThread if device.type == "cpu" else CopyStream


def place(name: str, kernels: str) -> tuple[torch.device, Kernels]:
    """The device to compute on, and its kernels. `auto` is a GPU where there is one that has
    kernels, else the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            "device",
            "device cuda was asked for, but torch finds no GPU; use --device cpu, or install a "
            "torch that is built for CUDA",
        )
    if name == "auto" and torch.cuda.is_available():
        try:
            return _gpu(), select(_gpu(), kernels)
        except ValueError as error:
            log.warning("computing on the CPU: %s", error)
    device = _gpu() if name == "cuda" else torch.device("cpu")
    try:
        return device, select(device, kernels)
    except ValueError as error:
        raise InvalidRequest("kernels", str(error)) from None


def _gpu() -> torch.device:
    """By its number, as tensors name theirs: the only one that a rank under Ray can see."""
    return torch.device("cuda", torch.cuda.current_device())
