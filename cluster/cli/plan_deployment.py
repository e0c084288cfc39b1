"""From the command line's arguments to all that a server of one model needs to know.

Everything a user can get wrong is found here, before any process is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from octavo.cluster.api.keys import resolve_keys
from octavo.cluster.api.settings import Address, FrontSettings, chat_settings
from octavo.cluster.api.tls import certificate_of
from octavo.cluster.config import EngineConfig
from octavo.cluster.planning import plan_model, resolve_device
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.lora_modules import parents


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to serve. `max_model_len` is what the model serves in the end."""

    config: EngineConfig
    settings: FrontSettings
    max_model_len: int
    address: Address


def plan_deployment(
    arguments: argparse.Namespace, on_progress: Callable[[str], None] = lambda _: None
) -> Deployment:
    """Raises `InvalidRequest` or another `OctavoError` with one sentence."""
    certificate = certificate_of(arguments.ssl_certfile, arguments.ssl_keyfile)
    if certificate is not None and arguments.address is not None:
        raise InvalidRequest(
            "ssl_certfile",
            "--ssl-certfile is for a server that listens itself; with --address, Ray Serve's "
            "proxies do, and have it in their http_options",
        )
    keys = resolve_keys(arguments.api_key, arguments.admin_api_key, arguments.api_key_file)
    plan = plan_model(arguments, resolve_device(arguments.device), on_progress)
    settings = FrontSettings(
        plan.config.model,
        plan.config.served_model_names,
        keys.callers,
        arguments.seed,
        admin_api_key=keys.admin,
        failover_timeout=arguments.failover_timeout,
        api_key_file=keys.file,
        allowed_origins=tuple(arguments.allowed_origins),
        request_timeout=arguments.request_timeout,
        enable_log_requests=arguments.enable_log_requests,
        adapters=parents(plan.config.lora_modules or ()),
        **chat_settings(arguments),
    )
    address = Address(arguments.host, arguments.port, certificate)
    return Deployment(plan.config, settings, plan.max_model_len, address)
