"""All settings of a deployment in one frozen value, composed once and handed down in parts.

Runtime facts (how many blocks there was room for) are never written back here. Field names are
vLLM's flags. Knows nothing of Ray and nothing of torch.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.scheduler.config import Allocation, PreemptionMode, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig
from octavo.workers.lora_modules import parse_modules

PlacementStrategy = Literal["STRICT_PACK", "PACK", "SPREAD"]
"""How one replica's processes lie on nodes, in Ray's words: on one, on few, on many."""

CPU_STEP_TOKENS = 256
CUDA_STEP_TOKENS = 2048

_CHOICES = {
    "preemption_mode": PreemptionMode,
    "allocation": Allocation,
    "placement_group_strategy": PlacementStrategy,
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`model` is a local directory and `device` is decided (`cpu` or `cuda`).

    Token counts and bytes; None means: decided from the model or the machine. `num_threads` is per
    rank, and so is `swap_space`, in GiB. `revision` names the weights. Raises `InvalidRequest`
    naming the flag that is wrong.
    """

    model: str
    served_model_names: tuple[str, ...]
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    model_impl: str = "auto"
    device: str = "cpu"
    tensor_parallel_size: int = 1
    num_replicas: int = 1
    placement_group_strategy: PlacementStrategy = "STRICT_PACK"
    max_model_len: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    swap_space: float | None = None  # GiB of host memory for each rank
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int = 1024
    enable_prefix_caching: bool = True
    preemption_mode: PreemptionMode = "auto"
    watermark_low: float = 0.04
    watermark_high: float = 0.08
    allocation: Allocation = "paged"
    revision: str = ""
    num_threads: int | None = None
    enforce_eager: bool = False
    cuda_graph_sizes: list[int] | None = None  # numbers of sequences, or the largest alone
    enable_lora: bool = False
    lora_modules: list[str] | None = None  # adapters, `name=path` or JSON each
    max_loras: int | None = None  # adapters at once, None for all
    max_lora_rank: int = 16

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
            ("max_loras", 1),
            ("max_lora_rank", 1),
        ):
            if (value := getattr(self, name)) is not None:
                _at_least(name, value, low)
        for size in self.cuda_graph_sizes or ():
            _at_least("cuda_graph_sizes", size, 1)
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
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise InvalidRequest(
                    name,
                    f"{_flag(name)} must be one of {', '.join(get_args(choices))}, got {value!r}",
                )
        self._verify_memory()
        self._verify_adapters()

    def _verify_memory(self) -> None:
        if self.swap_space is not None and not 0 <= self.swap_space < math.inf:
            raise InvalidRequest(
                "swap_space",
                f"--swap-space must be a number of GiB, 0 or more, got {self.swap_space}",
            )
        for name in ("watermark_low", "watermark_high"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise InvalidRequest(
                    name, f"{_flag(name)} must be at least 0 and below 1, got {value}"
                )
        if self.watermark_low > self.watermark_high:
            raise InvalidRequest(
                "watermark_low",
                f"--watermark-low must not be above --watermark-high ({self.watermark_high}), "
                f"got {self.watermark_low}",
            )

    def _verify_adapters(self) -> None:
        if self.lora_modules and not self.enable_lora:
            raise InvalidRequest("lora_modules", "--lora-modules needs --enable-lora")
        for name in self.adapters:
            if name in self.served_model_names:
                raise InvalidRequest(
                    "lora_modules",
                    f"--lora-modules has an adapter that is called {name!r}, as the model is; "
                    "rename it, or set --served-model-name",
                )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of adapters, which requests may use as a model's."""
        return tuple(parse_modules(self.lora_modules or ()))

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
            enable_prefix_caching=self.enable_prefix_caching and self.allocation == "paged",
            watermark_low=self.watermark_low,
            watermark_high=self.watermark_high,
            max_num_queued_reqs=self.max_num_queued_reqs,
            preemption_mode=self.preemption_mode,
            allocation=self.allocation,
            revision=f"{self.revision}{self.quantization or ''}",  # other weights, other content
            adapters=self.adapters,
            max_loras=self.max_loras,
        )

    def worker_config(self) -> WorkerConfig:
        """Every rank's part."""
        return WorkerConfig(
            model=self.model,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            device=self.device,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            max_model_len=self.max_model_len,
            tensor_parallel_size=self.tensor_parallel_size,
            num_blocks_override=self.num_gpu_blocks_override,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            gpu_memory_utilization=self.gpu_memory_utilization,
            swap_space=self.swap_space,
            num_threads=self.threads,
            quantization=self.quantization,
            model_impl=self.model_impl,
            enforce_eager=self.enforce_eager,
            cuda_graph_sizes=self.cuda_graph_sizes,
            lora_modules=self.lora_modules,
            max_lora_rank=self.max_lora_rank,
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise InvalidRequest(name, f"{_flag(name)} must be at least {low}, got {value}")
