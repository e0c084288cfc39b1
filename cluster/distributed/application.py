"""The application builder that a Serve config file names:
`import_path: octavo.cluster.distributed.application:app`.

`serve deploy`, `octavo deploy` and KubeRay's `serveConfigV2` all come here, in a task on the
cluster. What the models are is found out later, where they are: in their replicas and ingresses.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from octavo.cluster.api.keys import resolve_keys
from octavo.cluster.api.settings import FrontSettings, chat_settings
from octavo.cluster.arguments import (
    adapters_of,
    deployment_name,
    draft_config,
    front_arguments,
    least_replicas,
    most_replicas,
    names_of,
    read_application,
    replica_arguments,
)
from octavo.cluster.checkpoints.model_source import resolve_model
from octavo.cluster.distributed.actors import ReplicaSpec
from octavo.cluster.distributed.serve_app import ServedModel, build_app
from octavo.cluster.planning import plan_model
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.actor import model_member


def app(args: Mapping[str, Any]) -> Application:
    """For the arguments see `octavo.cluster.arguments`. A mistake becomes the application's
    message in Serve's status: an error of Serve's own kind is told as it is and not tried again."""
    try:
        asked = read_application(args)
    except InvalidRequest as error:
        raise RayServeException(error.message) from None
    has_gpu = ray.cluster_resources().get("GPU", 0) > 0  # type: ignore[no-untyped-call]
    neighbours = _ranks_per_node(asked.models)
    models = [_served(model, asked.shared, has_gpu, neighbours) for model in asked.models]
    return build_app(models, None, asked.ingress_replicas)


def plan_replica(model: argparse.Namespace, neighbours: int) -> ReplicaSpec:
    """What a replica on this machine must know. `neighbours`: ranks that share the machine. Raises
    an `OctavoError` with one sentence."""
    asked = vars(model)
    if asked["num_threads"] is None:
        asked = asked | {"num_threads": max(1, len(os.sched_getaffinity(0)) // neighbours)}
    plan = plan_model(argparse.Namespace(**asked), model.device)
    build = partial(model_member, plan.config.worker_config())
    return ReplicaSpec(plan.config, build, plan.max_model_len)


def plan_front(model: argparse.Namespace, shared: Mapping[str, Any]) -> FrontSettings:
    """What an ingress on this machine must know. Keys are those of its environment; `shared` are
    settings that concern all models."""
    path, _ = resolve_model(model.model, weights=False)
    keys = resolve_keys()
    return FrontSettings(
        str(path),
        names_of(model),
        keys.callers,
        model.seed,
        admin_api_key=keys.admin,
        api_key_file=keys.file,
        failover_timeout=model.failover_timeout,
        scale_to_zero=least_replicas(model) == 0,
        adapters=adapters_of(model),
        **chat_settings(model),
        **shared,
    )


def _served(
    model: argparse.Namespace, shared: Mapping[str, Any], has_gpu: bool, neighbours: int
) -> ServedModel:
    if model.device == "auto":
        model.device = "cuda" if has_gpu else "cpu"
    model.served_model_name = list(names_of(model))
    return ServedModel(
        deployment_name(model),
        draft_config(model),
        partial(plan_replica, model, neighbours),
        partial(plan_front, model, shared),
        model.resources,
        autoscaling=model.autoscaling,
        drain_timeout=model.drain_timeout,
        max_surge_percent=model.max_surge_percent,
        made_from=replica_arguments(model),
        told_of={**front_arguments(model), **shared},
    )


def _ranks_per_node(models: Sequence[argparse.Namespace]) -> int:
    """An even spread over the nodes that are there now."""
    ranks: int = sum(model.tensor_parallel_size * most_replicas(model) for model in models)
    there: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes: int = sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in there)
    return math.ceil(ranks / max(1, nodes))
