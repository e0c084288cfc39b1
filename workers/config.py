"""What a worker is told: the settings of one rank, and how long a context it may serve.

Knows nothing of tensors: data types are names here, and memory is bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.model_config import ModelConfig

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("int8", "fp8")
CACHE_DTYPES = ("auto", "fp8")  # auto: as is computed in
MODEL_IMPLS = ("auto", "octavo", "transformers")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of every rank of one engine, alike on all. Names and meanings are vLLM's flags.

    `model` is a local directory. `num_blocks_override` counts the null block too. `swap_space` is
    GiB of host memory for each rank, 0 for no host tier, None for what `host_bytes` thinks right.
    `num_threads` is per rank; None leaves torch's own choice. `quantization` makes the layers'
    weights int8 while they are loaded. `model_impl` is whose definition of the model computes:
    ours, transformers' own, or `auto` for ours where there is one. `cuda_graph_sizes` are the
    numbers of sequences for which decode steps are recorded as CUDA graphs, or how far the usual
    ones go if it is one number; `enforce_eager` records none. `lora_modules` are adapters, see
    `octavo.workers.lora_modules`. Raises `InvalidRequest` naming the flag.
    """

    model: str
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    num_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    swap_space: float | None = None
    num_threads: int | None = None
    kernels: str = "auto"
    load_format: str = "safetensors"
    model_impl: str = "auto"
    quantization: str | None = None
    enforce_eager: bool = False
    cuda_graph_sizes: list[int] | None = None
    lora_modules: list[str] | None = None
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, CACHE_DTYPES)
        _one_of("device", self.device, DEVICES)
        _one_of("model_impl", self.model_impl, MODEL_IMPLS)
        _one_of("load_format", self.load_format, ("safetensors",))
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise InvalidRequest(
                "quantization",
                f"quantization must be {', '.join(QUANTIZATIONS)} or left out, "
                f"got {self.quantization!r}",
            )
        for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_model_len", "kv_cache_memory_bytes", "num_threads"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for size in self.cuda_graph_sizes or ():
            _at_least("cuda_graph_sizes", size, 1)
        if self.num_blocks_override is not None:
            _at_least("num_blocks_override", self.num_blocks_override, 2)
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise InvalidRequest(
                "block_size", f"block_size must be a power of two, got {self.block_size}"
            )
        if self.swap_space is not None and not 0 <= self.swap_space < math.inf:
            raise InvalidRequest(
                "swap_space",
                f"swap_space must be a number of GiB, 0 or more, got {self.swap_space}",
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest(
                "gpu_memory_utilization",
                "gpu_memory_utilization must be above 0 and at most 1, "
                f"got {self.gpu_memory_utilization}",
            )


def served_length(model: ModelConfig, asked: int | None) -> int:
    """The longest context in tokens, prompt and output together: what was asked for, else the
    model's own. Raises `InvalidRequest` where the model cannot do it."""
    if asked is not None and asked > model.context_length:
        raise InvalidRequest(
            "max_model_len",
            f"max_model_len {asked} is more than the {model.context_length} tokens that "
            f"{Path(model.path).name} was made for; lower --max-model-len",
        )
    return asked or model.context_length


def resolve_dtype(asked: str, checkpoint: str, device: str) -> str:
    """The data type to compute in. The CPU has no use for float16: a float16 checkpoint runs in
    float32 there, and asking for it is refused."""
    if device != "cpu":
        return checkpoint if asked == "auto" else asked
    if asked == "float16":
        raise InvalidRequest(
            "dtype", "dtype float16 is not supported on the CPU; use bfloat16 or float32"
        )
    if asked == "auto":
        return "float32" if checkpoint == "float16" else checkpoint
    return asked


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(name, f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise InvalidRequest(name, f"{name} must be at least {low}, got {value}")
