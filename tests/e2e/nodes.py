"""A Ray cluster of several nodes on this machine, each started by `ray start` as on a machine of
its own: with an IP address of its own (all of 127.0.0.0/8 is this machine's) and an end of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import psutil  # type: ignore[import-untyped]

from tests.e2e.cluster import free_port
from tests.e2e.processes import actors_among
from tests.e2e.server import wait_for

RAY = (sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts")
OBJECT_STORE_BYTES = 80 * 2**20
START_SECONDS = 240  # on a machine that others use too
NOTICE_SOON = {  # that a node is gone, in seconds and not in fifteen
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Node:
    """One `ray start --block`."""

    def __init__(
        self, address: str, arguments: Sequence[str], environment: Mapping[str, str], log: str
    ) -> None:
        self.address = address
        self._log = log
        with open(log, "w") as sink:
            self._process = subprocess.Popen(
                [
                    *RAY,
                    "start",
                    "--block",
                    f"--node-ip-address={address}",
                    f"--object-store-memory={OBJECT_STORE_BYTES}",
                    *("--min-worker-port=0", "--max-worker-port=0"),
                    f"--dashboard-agent-listen-port={free_port()}",
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        with open(self._log) as log:
            return log.read()

    @property
    def is_up(self) -> bool:
        """Whether it says so. Raises `AssertionError` where it ended."""
        assert self._process.poll() is None, self.said
        return "Ray runtime started" in self.said

    def family(self) -> list[psutil.Process]:
        """Its processes, actors included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def actors(self, kind: str) -> list[psutil.Process]:
        """Processes of Ray actors whose title begins like this."""
        return actors_among(self.family(), kind)

    def kill(self) -> None:
        """As if its power failed: no process of it says another word."""
        family = self.family()
        for process in family:  # first all stand still, so that none sees another die
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=5)


class Nodes:
    """A cluster. Start its head first, which gives it `address`; `end` leaves nothing."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")  # Ray's sockets: short paths
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "200",
            **NOTICE_SOON,
        }
        self.nodes: list[Node] = []

    def head(self, address: str, port: int, *arguments: str) -> Node:
        self.address = f"{address}:{port}"
        own = ("--head", f"--port={port}", f"--temp-dir={self._folder}")
        return self._start(address, [*own, *arguments])

    def add(self, address: str, *arguments: str) -> Node:
        return self._start(address, [f"--address={self.address}", *arguments])

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, address: str, arguments: Sequence[str]) -> Node:
        log = os.path.join(self._folder, f"{address}.log")
        node = Node(address, arguments, self.environment, log)
        self.nodes.append(node)
        # One after another: two at once may take the same name for their sockets.
        wait_for(lambda: node.is_up, START_SECONDS, f"the start of {address}")
        return node
