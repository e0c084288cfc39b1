"""From a model's arguments to settings that were checked against the model and the machine.

Runs on the machine that has the model: the user's own for `octavo serve`, a replica's for an
application that was deployed.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.cluster.checkpoints.model_source import resolve_model
from octavo.cluster.checkpoints.revision import model_revision
from octavo.cluster.config import EngineConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.adapter_files import read_adapters
from octavo.workers.config import resolve_dtype, served_length
from octavo.workers.degree import check_degree
from octavo.workers.lora_modules import located, paths
from octavo.workers.read_model import read_model


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """`max_model_len` is what the model serves in the end."""

    config: EngineConfig
    max_model_len: int


def plan_model(
    arguments: argparse.Namespace,
    device: str,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ModelPlan:
    """`arguments` has the attributes of `octavo serve`'s flags; `device` is decided. Raises
    `InvalidRequest` or another `OctavoError` with one sentence."""
    modules = located(arguments.lora_modules or ())
    path, names = resolve_model(arguments.model, on_progress)
    found: dict[str, Any] = {
        "model": str(path),
        "served_model_names": tuple(arguments.served_model_name or names),
        "device": device,
        "revision": model_revision(path, paths(modules)),
        "lora_modules": modules,
    }
    config = EngineConfig(**{**engine_settings(arguments), **found})
    model = read_model(path, config.model_impl)
    resolve_dtype(config.dtype, model.dtype, device)
    check_degree(model, config.tensor_parallel_size)
    read_adapters(modules, model, config.max_lora_rank)
    return ModelPlan(config, served_length(model, config.max_model_len))


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those of the arguments that `EngineConfig` has under the same names."""
    names = {field.name for field in dataclasses.fields(EngineConfig)}
    return {name: value for name, value in vars(arguments).items() if name in names}


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
