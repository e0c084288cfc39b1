"""A Ray of our own on this machine, from nothing to nothing: started quietly, ended whole.

Only `octavo serve` uses it. It keeps its files in a folder of its own, so that no other program's
`ray.init()` finds and joins it, and it is closed to others by a token.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from octavo.cluster.config import EngineConfig
from octavo.scheduler.errors import EngineDead, InvalidRequest

OBJECT_STORE_BYTES = 128 * 2**20  # tokens and plans do not go through it
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",
}
END_SECONDS = 5.0
CONNECT_SECONDS = 5.0
LONGEST_BASE = 24


class RayCluster:
    """`start` before anything else imports Ray; `stop` leaves no process behind."""

    def __init__(self, address: str | None, dashboard: bool) -> None:
        self._address = address
        self._dashboard = dashboard
        self._folder: Path | None = None
        self._keep_logs = False
        self._family: list[psutil.Process] = []

    @property
    def ours(self) -> bool:
        """Whether this process started the cluster, and so must end it."""
        return self._address is None

    def keep_logs(self) -> str:
        """Where Ray's logs are; they outlive the cluster then."""
        self._keep_logs = True
        return str(self._folder or "the cluster's own folder")

    def start(self, config: EngineConfig) -> None:
        """Starts Ray, or joins it. Raises `InvalidRequest` where the cluster cannot be had or is
        too small."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.ours and "RAY_AUTH_MODE" not in os.environ:
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if self._address is not None:
            _check_address(self._address)
        import ray

        quiet: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": "ERROR",
            "configure_logging": True,
        }
        if self.ours:
            self._folder = _new_folder()
            try:
                ray.init(
                    address="local",
                    num_cpus=_logical_cpus(config),
                    include_dashboard=self._dashboard,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(self._folder),
                    **quiet,
                )
            except Exception as error:  # Ray raises all kinds; each is the same news to a user
                raise EngineDead(f"Ray could not start: {_first_line(error)}") from error
        else:
            try:
                ray.init(address=self._address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InvalidRequest(
                    "address",
                    f"cannot join a Ray cluster at {self._address}: {_first_line(error)}",
                ) from None
        from octavo.cluster.distributed.placement import check_room

        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        check_room(config, [node["Resources"] for node in nodes if node["Alive"]])

    def family(self) -> list[psutil.Process]:
        """All processes below this one, those seen earlier included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            known = set(self._family)
            self._family += [
                child for child in psutil.Process().children(recursive=True) if child not in known
            ]
        return self._family

    def stop(self) -> None:
        """Leaves the cluster; ends it if it is ours."""
        import ray

        family = self.family() if self.ours else []
        ray.shutdown()
        _, alive = psutil.wait_procs(family, timeout=END_SECONDS)
        _kill(alive)
        self._forget_folder()

    def kill(self) -> None:
        """The hard way: every process below this one, at once."""
        _kill(self.family() if self.ours else [])
        self._forget_folder()

    def _forget_folder(self) -> None:
        if self._folder is not None and not self._keep_logs:
            shutil.rmtree(self._folder, ignore_errors=True)


def _check_address(address: str) -> None:
    """Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or address.startswith("ray:"):
        return  # auto, or something that Ray refuses itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise InvalidRequest(
            "address", f"there is no Ray cluster at --address {address}: {_first_line(error)}"
        ) from None


def _new_folder() -> Path:
    """Ray makes sockets deep below it, whose paths have a limit of 107 bytes."""
    base = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(prefix="octavo-", dir=base if len(base) <= LONGEST_BASE else "/tmp")
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=END_SECONDS)


def _needed_cpus(config: EngineConfig) -> int:
    """Logical CPUs of the replicas' bundles and the ingress."""
    return math.ceil(config.num_replicas * (1 + config.tensor_parallel_size) + 1)


def _logical_cpus(config: EngineConfig) -> int:
    """Ray counts, it does not measure: a small machine may still hold more ranks than cores."""
    return max(len(os.sched_getaffinity(0)), _needed_cpus(config))
