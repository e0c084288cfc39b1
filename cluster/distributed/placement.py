"""Where a replica's processes go: one bundle for its front and scheduler, one for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from octavo.cluster.config import EngineConfig

Group = PlacementGroup

REPLICA_CPUS = 0.25  # the Serve replica only forwards
SCHEDULER_CPUS = 0.75
STRATEGY = "STRICT_PACK"


def rank_resources(device: str) -> dict[str, float]:
    """What one rank takes of a node."""
    return {"CPU": 1.0, "GPU": 1.0} if device == "cuda" else {"CPU": 1.0}


def bundles(
    config: EngineConfig, custom: Mapping[str, float] = MappingProxyType({})
) -> list[dict[str, float]]:
    """Bundle 0 is the front and the scheduler, bundle 1 + r is rank r, which takes the `custom`
    resources too."""
    front = {"CPU": REPLICA_CPUS + SCHEDULER_CPUS}
    rank = {**custom, **rank_resources(config.device)}
    return [front, *(dict(rank) for _ in range(config.tensor_parallel_size))]


def actor_options(resources: dict[str, float], group: Group | None, bundle: int) -> dict[str, Any]:
    """Ray options of an actor in one bundle. It is never restarted alone: a broken group is
    replaced whole."""
    options: dict[str, Any] = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    if group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle
        )
    return options
