"""By how many ranks a model can be shared. Knows no torch: whoever only plans need not wait for
it."""

from __future__ import annotations

from pathlib import Path

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.model_config import ModelConfig


def check_degree(model: ModelConfig, degree: int) -> None:
    """Raises `InvalidRequest` with the degrees that do divide the model, if this one does not."""
    if model.by_transformers and degree > 1:
        raise InvalidRequest(
            "tensor_parallel_size",
            f"{Path(model.path).name} is a {model.architecture}, which is computed by transformers "
            f"and on one rank only; set --tensor-parallel-size to 1, got {degree}",
        )
    if not _divides(model, degree):
        able = [d for d in range(1, model.num_heads + 1) if _divides(model, d)]
        raise InvalidRequest(
            "tensor_parallel_size",
            f"tensor_parallel_size {degree} does not divide {Path(model.path).name} "
            f"({model.num_heads} query heads, {model.num_kv_heads} KV heads, intermediate size "
            f"{model.intermediate_size}); use one of {', '.join(map(str, able))}",
        )


def _divides(model: ModelConfig, degree: int) -> bool:
    few, many = sorted((model.num_kv_heads, degree))
    return (
        degree >= 1
        and model.num_heads % degree == 0
        and model.intermediate_size % degree == 0
        and many % few == 0
    )
