"""Groups of ranks on two nodes that cannot start, each in its own way, and what is said of it.

A program of its own, as only such a one can join a cluster that has a token. Its arguments are the
cluster's address, a model, and the addresses of two nodes, each of which has a resource of that
name; the second has fake GPUs. It prints the sentences as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed import ray_workers
from octavo.scheduler.errors import EngineDead
from octavo.workers.actor import Build, model_member, null_member

NULL = partial(null_member, 16, 64, 0, 0.0)


def sentence(
    build: Build, places: Sequence[str], device: str = "cpu", *, processors: float = 1.0
) -> str:
    """What is said of ranks at `places` where each has so many processors."""
    rank = {"CPU": processors, **({"GPU": 1.0} if device == "cuda" else {})}
    group = placement_group([{"CPU": 1.0}, *({**rank, place: 1.0} for place in places)])
    if not group.wait(30):
        return "the group found no place"

    async def start() -> str:
        workers = ray_workers.RayWorkers(build, len(places), device=device, group=group)
        try:
            await workers.start()
        except EngineDead as error:
            return error.message
        await workers.stop()
        return "it started"

    try:
        return asyncio.run(asyncio.wait_for(start(), 150))
    finally:
        remove_placement_group(group)


def another_version(left: str, right: str) -> str:
    """The scheduler's is another than that of the ranks, and this process is the scheduler's."""
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "octavo-0.0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: octavo\nVersion: 0.0.1\n")
        sys.path.insert(0, folder)
        try:
            return sentence(NULL, [left, right])
        finally:
            sys.path.remove(folder)


def missing(left: str, right: str) -> str:
    """The ranks' bundles are too small for them, so that they never come."""
    bound, ray_workers.PROCESS_SECONDS = ray_workers.PROCESS_SECONDS, 3.0
    try:
        return sentence(NULL, [left, right], processors=0.5)
    finally:
        ray_workers.PROCESS_SECONDS = bound


def taken_port(left: str, right: str) -> str:
    """Another program listens where rank 0 wants to."""

    def build(rank: int, size: int, meeting: str) -> Any:
        from octavo.workers.parallel import Group

        with socket.socket() as thief:
            if rank == 0:
                thief.bind(("0.0.0.0", urlsplit(meeting).port or 0))
                thief.listen()
            Group.join(meeting, rank, size, "cpu", timeout_seconds=3)

    return sentence(build, [left, right])


def blocked_port(left: str, right: str) -> str:
    """What rank 1 sends to the meeting is dropped without an answer, as by a firewall."""

    def build(rank: int, size: int, meeting: str) -> Any:
        from octavo.workers.parallel import Group

        with socket.socket() as wall, socket.socket() as first, socket.socket() as second:
            wall.bind((urlsplit(meeting).hostname, 0))
            wall.listen(0)
            for each in (first, second):  # a queue that is full takes no more
                each.setblocking(False)
                each.connect_ex(wall.getsockname())
            host, port = wall.getsockname()
            meeting = f"tcp://{host}:{port}" if rank == 1 else meeting
            Group.join(meeting, rank, size, "cpu", timeout_seconds=3)

    return sentence(build, [left, right])


def main(address: str, model: str, left: str, right: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    config = EngineConfig(model, ("tiny",), device="cuda", tensor_parallel_size=2)
    on_gpu = partial(model_member, config.worker_config())
    cases: dict[str, Callable[[], str]] = {
        "another version": partial(another_version, left, right),
        "a rank that is missing": partial(missing, left, right),
        "a port that is taken": partial(taken_port, left, right),
        "a port that is blocked": partial(blocked_port, left, right),
        "no GPU": partial(sentence, on_gpu, [right, right], "cuda"),
    }
    print(json.dumps({name: say() for name, say in cases.items()}))
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
