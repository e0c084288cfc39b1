"""Where a replica's processes go: one bundle for its front and scheduler, one for each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from octavo.cluster.config import EngineConfig
from octavo.scheduler.errors import InvalidRequest

Group = PlacementGroup

REPLICA_CPUS = 0.25  # the Serve replica only forwards
SCHEDULER_CPUS = 0.75


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


def bundle_nodes(group: Group) -> dict[int, str]:
    """Ray's id of the node that each bundle of a group is on."""
    table = placement_group_table(group)
    return dict(table["bundles_to_node_id"])


def bundles_of_ranks(nodes: Mapping[int, str]) -> list[int]:
    """The bundle that each rank takes: ranks on one node are neighbours, and rank 0, which answers,
    is with the scheduler in bundle 0 where that node has a rank."""
    ranks = [bundle for bundle in nodes if bundle != 0]
    return sorted(ranks, key=lambda bundle: (nodes[bundle] != nodes[0], nodes[bundle], bundle))


def addresses() -> dict[str, str]:
    """The IP address of each node that is up, by Ray's id of it."""
    nodes: Sequence[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}


def odd_gpu(ranks: Sequence[tuple[str, Sequence[str]]]) -> tuple[int, str] | None:
    """The first of the ranks, each (Ray's id of its node, the GPUs that it was given there), that
    has not exactly one GPU to itself, and in words why."""
    taken: dict[tuple[str, str], int] = {}
    for rank, (node, gpus) in enumerate(ranks):
        if len(gpus) != 1:
            what = f"{len(gpus)} GPUs, {', '.join(gpus)}," if gpus else "no GPU"
            return rank, f"was given {what} by Ray, and needs one of its own"
        other = taken.setdefault((node, gpus[0]), rank)
        if other != rank:
            return rank, f"was given GPU {gpus[0]} by Ray, which rank {other} has already"
    return None


def check_room(config: EngineConfig, nodes: Sequence[Mapping[str, float]]) -> None:
    """Raises `InvalidRequest` where these nodes' resources are too few for all replicas and one
    ingress, or lie so that not every replica finds a node of its own."""
    need = {"CPU": 1.0 + config.tensor_parallel_size}
    if config.device == "cuda":
        need["GPU"] = float(config.tensor_parallel_size)
    what = f"{config.num_replicas} replica(s) of {config.tensor_parallel_size} rank(s)"
    for name, each in need.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        count = config.num_replicas * each + (REPLICA_CPUS if name == "CPU" else 0)
        if there < count:
            raise InvalidRequest(
                "tensor_parallel_size",
                f"{what} need {math.ceil(count)} {name}s, and the cluster has {there:g}; lower "
                "--tensor-parallel-size or --num-replicas",
            )
    if config.placement_group_strategy != "STRICT_PACK":
        return
    fitting = sum(
        int(min(node.get(name, 0.0) // each for name, each in need.items())) for node in nodes
    )
    if fitting < config.num_replicas:
        told = " and ".join(f"{each:g} {name}s" for name, each in need.items())
        raise InvalidRequest(
            "placement_group_strategy",
            f"{what} need {told} on one node each, and the nodes have that {fitting} time(s); "
            "lower --tensor-parallel-size or --num-replicas, or let a replica lie on several "
            "nodes with --placement-group-strategy PACK",
        )
