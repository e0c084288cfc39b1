"""What the chaos happens to: a Ray cluster that serves one tiny model, by a Serve config file and
under two names. Replicas of `pair` have two ranks, replicas of `lone` have one. The way in is on
the head: clients of a node that is lost are lost with it, whoever serves."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from octavo.cluster.arguments import INGRESS
from octavo.cluster.deployments import IMPORT_PATH
from tests.chaos.leaves import RESOURCE, ROOM, Leaves
from tests.e2e.cluster import Cluster, free_port
from tests.e2e.nodes import NOTICE_SOON

PAIR, LONE = "pair", "lone"
RANKS = {PAIR: 2, LONE: 1}
SETTLED_SECONDS = 120.0
ON_HEAD = {"node:__internal_head__": 0.001}
IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")

# What the title of a process begins with, or holds, and what the process is.
_ROLES = (
    (r"ray::WorkerActor", "worker"),
    (r"ray::SchedulerActor", "scheduler"),
    (r"ray::ServeReplica:chaos:Ingress", "ingress"),
    (r"ray::ServeReplica:chaos:", "replica"),
    (r"ray::ServeController", "controller"),
    (r"ray::ProxyActor", "proxy"),
    (r"\S*(gcs_server|raylet)\b", "head"),
    (r".*\b(dashboard|agent|monitor|log_monitor)\b", "head"),
)


class Victim:
    """The cluster with its application. `replicas` says how many of each model, `nodes` how many
    there are beside the head, which then serves no replica, and `room` how many ranks fit on one of
    them. `end` it."""

    def __init__(
        self,
        model: Path,
        replicas: Mapping[str, int],
        ingresses: int,
        nodes: int = 0,
        room: int = ROOM,
    ) -> None:
        self._cluster = Cluster("", NOTICE_SOON if nodes else {})
        try:
            self.leaves = Leaves(self._cluster, nodes, room)
        except BaseException:
            self._cluster.end()
            raise
        self._nodes = nodes
        self._port = free_port()
        self._replicas = dict(replicas)
        self._ingresses = ingresses
        self._model = model
        self.models = tuple(replicas)
        self.url = f"http://127.0.0.1:{self._port}"

    async def deploy(self, changes: dict[str, int] | None = None) -> None:
        """Tells Serve how many replicas each model should have, and all else as before."""
        self._replicas.update(changes or {})
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.put(
                f"{self._cluster.dashboard}/api/serve/applications/",
                json=self._config(),
                headers=self._cluster.headers,
            )
        assert answer.status_code == 200, answer.text

    async def start(self) -> None:
        """Deploys, and waits until all replicas serve."""
        await self.deploy()
        await self.settle()

    async def settle(self) -> None:
        """Waits until all the replicas that should be there are, and no process more, and they hold
        nothing. Raises `AssertionError` where that does not happen in time."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while not await self._settled():
            assert time.monotonic() < deadline, "the cluster did not become whole and idle"
            await asyncio.sleep(0.2)

    async def oldest_replica(self) -> set[psutil.Process]:
        """All processes of the replica of `pair` that has lived longest, if one lives."""
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.get(
                f"{self._cluster.dashboard}/api/v0/actors",
                params={
                    **{"detail": "1", "limit": "10000"},
                    **{"filter_keys": "state", "filter_predicates": "=", "filter_values": "ALIVE"},
                },
                headers=self._cluster.headers,
            )
        actors = answer.json()["data"]["result"]["result"]
        groups = {actor["pid"]: actor["placement_group_id"] for actor in actors}
        pairs = {actor["pid"] for actor in actors if actor["class_name"].endswith(f":{PAIR}")}
        there = self.processes()
        oldest = next((each for each in there["replica"] if each.pid in pairs), None)
        if oldest is None:
            return set()
        own = groups[oldest.pid]
        every = (each for processes in there.values() for each in processes)
        return {each for each in every if groups.get(each.pid) == own}

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Those that are there now, by role, the oldest first."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in [*self._cluster.family(), *self.leaves.family()]:
            try:
                title = " ".join(process.cmdline())
                process.create_time()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            role = next((role for begin, role in _ROLES if re.match(begin, title)), None)
            if role is not None:
                found[role].append(process)
        for each in found.values():
            each.sort(key=psutil.Process.create_time)
        return found

    async def _settled(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=10) as client:
                text = (await client.get(f"{self.url}/metrics")).text
        except httpx.HTTPError:
            return False
        pattern = rf'^(?:{"|".join(IDLE)}){{.*model_name="([^"]+)".*}} (\S+)$'
        found = re.findall(pattern, text, re.M)
        counts = Counter(model for model, _ in found)
        whole = {model: count * len(IDLE) for model, count in self._replicas.items()}
        if counts != whole or any(float(value) for _, value in found):
            return False
        there = await asyncio.to_thread(self.processes)
        return all(len(there[role]) == count for role, count in self._expected().items())

    def _expected(self) -> dict[str, int]:
        """How many processes there should be."""
        replicas = sum(self._replicas.values())
        ranks = sum(RANKS[model] * count for model, count in self._replicas.items())
        ingresses = {"ingress": self._ingresses}
        return {"replica": replicas, "scheduler": replicas, "worker": ranks, **ingresses}

    def end(self) -> None:
        self.leaves.end()
        self._cluster.end()

    def _config(self) -> dict[str, Any]:
        common = {
            "model": str(self._model),
            "dtype": "float32",
            "kv_cache_memory_bytes": "16MiB",
            "num_threads": 1,
            "failover_timeout": 120.0,
            "resources": {RESOURCE: 1.0} if self._nodes else {},
        }
        models = [
            {"served_model_name": name, "tensor_parallel_size": RANKS[name], **common}
            for name in self.models
        ]
        application = {
            "name": "chaos",
            "route_prefix": "/",
            "import_path": IMPORT_PATH,
            "args": {"models": models, "ingress_replicas": self._ingresses},
            "deployments": [
                *({"name": name, "num_replicas": count} for name, count in self._replicas.items()),
                {"name": INGRESS, "ray_actor_options": {"num_cpus": 0.25, "resources": ON_HEAD}},
            ],
        }
        return {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self._port},
            "applications": [application],
        }
