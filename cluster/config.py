"""All settings of a deployment in one frozen value, composed once and handed down in parts.

Runtime facts (how many blocks there was room for) are never written back here. Field names are
vLLM's flags. Knows nothing of Ray and nothing of torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig

CPU_STEP_TOKENS = 256
CUDA_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`model` is a local directory and `device` is decided (`cpu` or `cuda`).

    Token counts and bytes; None means: decided from the model or the machine. `num_threads` is per
    rank. Raises `InvalidRequest` naming the flag that is wrong.
    """

    model: str
    served_model_names: tuple[str, ...]
    dtype: str = "auto"
    device: str = "cpu"
    tensor_parallel_size: int = 1
    num_replicas: int = 1
    max_model_len: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int = 1024
    enable_prefix_caching: bool = True
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise InvalidRequest("served_model_name", "--served-model-name must not be empty")
        for name in ("tensor_parallel_size", "num_replicas", "max_num_seqs", "max_num_queued_reqs"):
            _at_least(name, getattr(self, name), 1)
        for name, low in (
            ("max_model_len", 2),
            ("max_num_batched_tokens", 1),
            ("num_gpu_blocks_override", 2),
            ("kv_cache_memory_bytes", 1),
            ("num_threads", 1),
        ):
            if (value := getattr(self, name)) is not None:
                _at_least(name, value, low)
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise InvalidRequest(
                "block_size", f"--block-size must be a power of two, got {self.block_size}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest(
                "gpu_memory_utilization",
                "--gpu-memory-utilization must be above 0 and at most 1, "
                f"got {self.gpu_memory_utilization}",
            )

    @property
    def step_tokens(self) -> int:
        """Tokens that one step may compute."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return CUDA_STEP_TOKENS if self.device == "cuda" else CPU_STEP_TOKENS

    @property
    def threads(self) -> int:
        """Threads of one rank: an even share of this machine's cores unless set."""
        if self.num_threads is not None:
            return self.num_threads
        ranks = self.tensor_parallel_size * self.num_replicas
        return max(1, len(os.sched_getaffinity(0)) // ranks)

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        """The scheduler's part. `max_model_len` is what the model serves in the end."""
        return SchedulerConfig(
            max_model_len=max_model_len,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            max_num_queued_reqs=self.max_num_queued_reqs,
        )

    def worker_config(self) -> WorkerConfig:
        """Every rank's part."""
        return WorkerConfig(
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            max_model_len=self.max_model_len,
            tensor_parallel_size=self.tensor_parallel_size,
            num_blocks_override=self.num_gpu_blocks_override,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            gpu_memory_utilization=self.gpu_memory_utilization,
            num_threads=self.threads,
        )


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        flag = "--" + name.replace("_", "-")
        raise InvalidRequest(name, f"{flag} must be at least {low}, got {value}")
