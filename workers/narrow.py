"""FP8: whether a rank may keep weights or its cache in it, and what its cache is of."""

from __future__ import annotations

import torch

from octavo.kernels.base import Kernels
from octavo.kernels.quantized import FP8
from octavo.kernels.select import missing_for_fp8
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig


def cache_dtype(
    config: WorkerConfig, dtype: torch.dtype, kernels: Kernels, device: torch.device
) -> torch.dtype:
    """The dtype of keys and values, `dtype` unless FP8 was asked for. Raises `InvalidRequest` where
    that was, for them or for weights, and cannot be had."""
    for flag in ("quantization", "kv_cache_dtype"):
        if getattr(config, flag) == "fp8" and (reason := missing_for_fp8(kernels, device)):
            raise InvalidRequest(flag, f"{flag} fp8 {reason}")
    return FP8 if config.kv_cache_dtype == "fp8" else dtype
