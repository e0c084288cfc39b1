"""From the command line's arguments to all that a server of one model needs to know.

Everything a user can get wrong is found here, before any process is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from octavo.cluster.api.keys import resolve_keys
from octavo.cluster.api.settings import FrontSettings, chat_settings
from octavo.cluster.config import EngineConfig
from octavo.cluster.planning import plan_model, resolve_device


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
    plan = plan_model(arguments, resolve_device(arguments.device), on_progress)
    keys, admin_key = resolve_keys(arguments.api_key, arguments.admin_api_key)
    settings = FrontSettings(
        plan.config.model,
        plan.config.served_model_names,
        keys,
        arguments.seed,
        admin_api_key=admin_key,
        failover_timeout=arguments.failover_timeout,
        **chat_settings(arguments),
    )
    return Deployment(plan.config, settings, plan.max_model_len)
