"""From the command line's arguments to settings that were checked against the model and machine.

Everything a user can get wrong is found here, before any process is started.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.cluster.api.settings import FrontSettings
from octavo.cluster.checkpoints.model_source import resolve_model
from octavo.cluster.checkpoints.revision import model_revision
from octavo.cluster.config import EngineConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import resolve_dtype, served_length
from octavo.workers.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to serve. `max_model_len` is what the model serves in the end."""

    config: EngineConfig
    settings: FrontSettings
    max_model_len: int


def plan_deployment(
    arguments: argparse.Namespace, on_progress: Callable[[str], None] = lambda _: None
) -> Deployment:
    """Raises `InvalidRequest` or another `OctavoError` with one sentence."""
    device = resolve_device(arguments.device)
    path, names = resolve_model(arguments.model, on_progress)
    served = tuple(arguments.served_model_name or names)
    config = EngineConfig(
        model=str(path),
        served_model_names=served,
        dtype=arguments.dtype,
        quantization=arguments.quantization,
        device=device,
        tensor_parallel_size=arguments.tensor_parallel_size,
        num_replicas=arguments.num_replicas,
        max_model_len=arguments.max_model_len,
        block_size=arguments.block_size,
        num_gpu_blocks_override=arguments.num_gpu_blocks_override,
        kv_cache_memory_bytes=arguments.kv_cache_memory_bytes,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_num_queued_reqs=arguments.max_num_queued_reqs,
        enable_prefix_caching=arguments.enable_prefix_caching,
        swap_space=arguments.swap_space,
        preemption_mode=arguments.preemption_mode,
        watermark_low=arguments.watermark_low,
        watermark_high=arguments.watermark_high,
        allocation=arguments.allocation,
        revision=model_revision(path),
        num_threads=arguments.num_threads,
    )
    model = ModelConfig.from_directory(path)
    resolve_dtype(config.dtype, model.dtype, device)
    if config.tensor_parallel_size > 1:
        from octavo.workers.parallel import check_degree  # brings torch in, a second of start-up

        check_degree(model, config.tensor_parallel_size)
    keys, admin_key = resolve_keys(arguments.api_key, arguments.admin_api_key)
    return Deployment(
        config,
        FrontSettings(
            str(path),
            served,
            keys,
            arguments.seed,
            admin_api_key=admin_key,
            failover_timeout=failover_timeout(arguments.failover_timeout),
        ),
        served_length(model, config.max_model_len),
    )


def failover_timeout(seconds: float) -> float:
    """Raises `InvalidRequest` where it is no time to wait."""
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(
            "failover_timeout",
            f"--failover-timeout must be a number of seconds, 0 or more, got {seconds}",
        )
    return seconds


def resolve_device(asked: str) -> str:
    """`cpu` or `cuda`. Raises `InvalidRequest` where a GPU is asked for and none can be used."""
    if asked == "cpu" or (asked == "auto" and not _driver_present()):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise InvalidRequest(
            "device",
            "--device cuda: no GPU can be used here (no driver, or torch was built for the CPU); "
            "use --device cpu",
        )
    return "cpu"


def _driver_present() -> bool:
    """Cheaper than asking torch, which takes a second to import."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def resolve_keys(keys: list[str], admin: str | None) -> tuple[tuple[str, ...], str | None]:
    """The callers' keys and the admin's, from the flags or else from the environment. Raises
    `InvalidRequest` for an empty key and for one that would be both."""
    if not keys and (key := os.environ.get("OCTAVO_API_KEY")):
        keys = [key]
    if admin is None:
        admin = os.environ.get("OCTAVO_ADMIN_API_KEY") or None
    for name, given in (("api_key", keys), ("admin_api_key", [admin])):
        if any(key is not None and not key.strip() for key in given):
            raise InvalidRequest(name, f"{name} must not be empty; leave it out for none")
    if admin in keys:
        raise InvalidRequest("admin_api_key", "admin_api_key must differ from every --api-key")
    return tuple(keys), admin
