"""Serves a deployment from this one process, without Ray: one rank, one replica."""

from __future__ import annotations

import asyncio

from octavo.cluster.api.app import create_app
from octavo.cluster.api.request_log import log_requests
from octavo.cluster.api.server import HttpServer
from octavo.cluster.cli.console import Console
from octavo.cluster.cli.plan_deployment import Deployment
from octavo.cluster.cli.sizes import show_capacity
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.worker import Worker


async def serve_locally(deployment: Deployment, console: Console, stop: asyncio.Event) -> None:
    """Returns after `stop` was set and the server is down."""
    config = deployment.config
    if config.tensor_parallel_size > 1 or config.num_replicas > 1:
        raise InvalidRequest(
            "executor",
            "--executor local runs one rank in one process; use --executor ray for "
            "--tensor-parallel-size or --num-replicas above 1",
        )

    def configure(capacity: Capacity) -> SchedulerConfig:
        console.say(show_capacity(capacity, deployment.max_model_len))
        return config.scheduler_config(deployment.max_model_len)

    console.say("loading the model")
    workers = LocalWorkers(lambda: Worker(config.worker_config()))
    async with LocalEngine(workers, configure, config.journal_settings()) as client:
        settings = deployment.settings
        if settings.enable_log_requests:
            log_requests(console.say)
        server = HttpServer(create_app(client, settings), deployment.address)
        server.start()
        console.banner(deployment.address, settings.served_model_names[0], settings.asks_for_key)
        await stop.wait()
        console.say("stopping")
        await server.stop()
