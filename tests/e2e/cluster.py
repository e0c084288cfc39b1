"""A Ray cluster with a dashboard and a token, as an administrator would have started it, and the
`octavo` and `serve` commands of a user who has the token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType

import httpx
import psutil  # type: ignore[import-untyped]

from tests.e2e.processes import actors_among

START = """
import ray, sys
ray.init(
    address="local", num_cpus=16, include_dashboard=True, dashboard_host="127.0.0.1",
    dashboard_port=int(sys.argv[1]), object_store_memory=128 * 2**20, _temp_dir=sys.argv[2],
    log_to_driver=False, logging_level="ERROR",
)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


class Cluster:
    """Started by its making. `api_key` and `more` are in the environment of all its processes.
    `address` is where further nodes join it, in an environment like its own."""

    def __init__(self, api_key: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.dashboard = f"http://127.0.0.1:{free_port()}"
        self.folder = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")  # Ray's sockets: short paths
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            **more,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, self.dashboard.rpartition(":")[2], self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.environment, "OCTAVO_API_KEY": api_key},
            start_new_session=True,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            self.end()
            raise AssertionError("Ray did not start")

    @property
    def headers(self) -> dict[str, str]:
        """What a caller of the dashboard shows."""
        return {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}

    def family(self) -> list[psutil.Process]:
        """All processes of it, now."""
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def actors(self, kind: str) -> list[psutil.Process]:
        """Processes of Ray actors whose title begins like this."""
        return actors_among(self.family(), kind)

    def running(self, application: str, deployment: str) -> int:
        """How many replicas of a deployment Serve sends requests to."""
        answer = httpx.get(
            f"{self.dashboard}/api/serve/applications/", headers=self.headers, timeout=30
        )
        replicas = answer.json()["applications"][application]["deployments"][deployment]["replicas"]
        return sum(replica["state"] == "RUNNING" for replica in replicas)

    def octavo(self, *arguments: str, token: bool = True) -> subprocess.CompletedProcess[str]:
        """`octavo …`, run to its end."""
        command = [sys.executable, "-m", "octavo.cluster.cli.main", *arguments]
        return self._run([*command, "--address", self.dashboard], token)

    def serve(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Ray Serve's own command, run to its end."""
        code = "from ray.serve.scripts import cli; cli()"
        command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
        return self._run([*command, "--address", self.dashboard], token=True)

    def end(self) -> None:
        """Nothing of it is left."""
        family = [psutil.Process(self._process.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # the end of its input is the end of it
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: list[str], token: bool) -> subprocess.CompletedProcess[str]:
        environment = dict(self.environment)
        if not token:
            del environment["RAY_AUTH_TOKEN"], environment["RAY_AUTH_MODE"]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=300
        )


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
