"""An engine for one process to use, with its workers here or as Ray actors."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from octavo.cluster.client import EngineClient
from octavo.cluster.config import EngineConfig
from octavo.cluster.engine import Workers
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.worker import Worker

EXECUTORS = ("local", "ray")


@asynccontextmanager
async def open_engine(
    config: EngineConfig, max_model_len: int, executor: str
) -> AsyncIterator[EngineClient]:
    """The engine, from loaded to stopped. Raises `InvalidRequest` naming the flag at fault, or
    `EngineDead` with the reason where the workers cannot start."""
    if executor not in EXECUTORS:
        raise InvalidRequest(
            "executor", f"executor must be one of {', '.join(EXECUTORS)}, got {executor!r}"
        )
    if executor == "local" and config.tensor_parallel_size > 1:
        raise InvalidRequest(
            "tensor_parallel_size",
            f"tensor_parallel_size {config.tensor_parallel_size} needs executor='ray': the local "
            "executor runs one rank",
        )
    with _workers(config, executor) as workers:
        async with LocalEngine(
            workers, lambda _: config.scheduler_config(max_model_len), config.journal_settings()
        ) as client:
            yield client


@contextmanager
def _workers(config: EngineConfig, executor: str) -> Iterator[Workers]:
    if executor == "local":
        yield LocalWorkers(lambda: Worker(config.worker_config()))
        return
    with _ray(config.tensor_parallel_size):
        from octavo.cluster.distributed.ray_workers import RayWorkers
        from octavo.workers.actor import model_member

        yield RayWorkers(
            partial(model_member, config.worker_config()),
            config.tensor_parallel_size,
            device=config.device,
        )


@contextmanager
def _ray(ranks: int) -> Iterator[None]:
    """The program's own Ray if it has one or names one in `RAY_ADDRESS`, else one made for this
    engine alone and ended with it."""
    from octavo.cluster.distributed.ray_cluster import ENVIRONMENT, OBJECT_STORE_BYTES

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    else:
        ray.init(
            "local",
            num_cpus=max(len(os.sched_getaffinity(0)), ranks),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        yield
    finally:
        ray.shutdown()
