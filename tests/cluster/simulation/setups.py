"""A small model on a slow device, so that memory and time are short in small simulations."""

from __future__ import annotations

from octavo.cluster.simulation.hardware import Hardware
from octavo.cluster.simulation.models import ModelSizes
from octavo.cluster.simulation.setup import Setup
from octavo.scheduler.config import SchedulerConfig

MODEL = ModelSizes("small", 4, 256, 4, 4, 64, 1024, 1000, 512)
DEVICE = Hardware(
    name="slow", memory=8 * 2**30, bandwidth=1e10, flops=1e12, link=1e10, host_link=1e9
)


def setup(blocks=64, scheduler=None, **changes):
    """Blocks of 16, sequences of up to 512 tokens."""
    given = {"max_model_len": 512, "max_num_queued_reqs": 10**6} | (scheduler or {})
    return Setup(DEVICE, MODEL, SchedulerConfig(**given), blocks=blocks, **changes)
