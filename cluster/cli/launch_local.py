"""Serves a deployment from this one process, without Ray: one rank, one replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

from octavo.cluster.api.app import create_app
from octavo.cluster.cli.console import Console
from octavo.cluster.cli.plan_deployment import Deployment
from octavo.cluster.cli.sizes import show_capacity
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.worker import Worker

DRAIN_SECONDS = 5


class _Server(uvicorn.Server):
    """Leaves signals to the command, which knows what else must be ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_locally(
    deployment: Deployment, host: str, port: int, console: Console, stop: asyncio.Event
) -> None:
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
    workers = LocalWorkers(lambda: Worker(config.worker_config()), config.block_size)
    async with LocalEngine(workers, configure) as client:
        app = create_app(client, deployment.settings)
        server = _Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            name = deployment.settings.served_model_names[0]
            console.banner(host, port, name, bool(deployment.settings.api_keys))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            console.say("stopping")
        server.should_exit = True
        await serving
