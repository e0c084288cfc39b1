"""Tables of rotary angles: plain, linearly stretched, or stretched the way Llama 3.1 does it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.workers.model_config import ModelConfig, RopeScaling


def rotary_table(model: ModelConfig, length: int) -> Tensor:
    """float32 `[length, 2, head_dim / 2]`: cosine, then sine, of every position's angles."""
    exponents = torch.arange(0, model.head_dim, 2, dtype=torch.int64).float() / model.head_dim
    frequencies = 1.0 / model.rope_theta**exponents
    if model.rope_scaling is not None:
        frequencies = _stretch(frequencies, model.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    slow = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slow
    # llama3: wavelengths that the original context held many times stay, those longer than it are
    # stretched, and in between the two are blended.
    turns = scaling.original_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * slow + keep * frequencies
