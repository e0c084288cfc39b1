"""`octavo serve` as a user runs it: a subprocess that is watched, asked and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import psutil  # type: ignore[import-untyped]

T = TypeVar("T")
RUNNING = "vllm:num_requests_running"
USAGE = "vllm:kv_cache_usage_perc"
READY_SECONDS = 150.0
BACK_SECONDS = 150.0  # until a new replica is there; a few, where nobody else uses the machine
STOP_SECONDS = 40.0


def wait_for(what: Callable[[], T], seconds: float, describe: str) -> T:
    """Polls until `what()` is true and returns it."""
    deadline = time.monotonic() + seconds
    value = what()
    while not value:
        assert time.monotonic() < deadline, f"{describe} did not happen within {seconds} s"
        time.sleep(0.05)
        value = what()
    return value


def gauge(url: str, name: str, model: str = "") -> dict[str, float]:
    """A metric's value on every replica that is up, by the replica's name; of one model, or all.
    What was reported half a second ago, or more on a busy machine: wait for what is to come."""
    return read_gauge(scrape(url), name, model)


def scrape(url: str) -> str:
    """The metrics of all replicas that are up, of one moment each."""
    return httpx.get(f"{url}/metrics", timeout=30).text


def read_gauge(text: str, name: str, model: str = "") -> dict[str, float]:
    """See `gauge`. Two metrics of one `scrape` belong together."""
    of_model = f'[^}}]*model_name="{re.escape(model)}"' if model else ""
    pattern = rf'^{re.escape(name)}{{engine="([^"]+)"{of_model}[^}}]*}} (\S+)$'
    return {engine: float(value) for engine, value in re.findall(pattern, text, re.M)}


def idle(text: str) -> set[str]:
    """The names of the replicas that a `scrape` is of, if none of them did anything."""
    running, usage = read_gauge(text, RUNNING), read_gauge(text, USAGE)
    return set() if any([*running.values(), *usage.values()]) else set(running)


class Server:
    """Started in a process group of its own, so that a Ctrl-C can be sent as a terminal does."""

    def __init__(self, log: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = log.parent
        self._log = log
        command = [sys.executable, "-m", "octavo.cluster.cli.main", "serve", *arguments]
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self._seen: set[psutil.Process] = set()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_ready(self) -> None:
        wait_for(
            lambda: "Octavo is ready" in self.log or self.process.poll() is not None,
            READY_SECONDS,
            "the banner",
        )
        assert self.process.poll() is None, self.log

    def family(self) -> list[psutil.Process]:
        """All processes below, now; they are remembered."""
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        self._seen |= set(children)
        return children

    def workers(self) -> list[psutil.Process]:
        """The ranks of all replicas."""
        return self.actors("WorkerActor")

    def actors(self, kind: str) -> list[psutil.Process]:
        """Processes of Ray actors whose title begins like this."""
        found = []
        for process in self.family():
            try:
                title = process.cmdline()[:1]
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            if title and title[0].startswith(f"ray::{kind}"):
                found.append(process)
        return found

    def gauge(self, name: str) -> dict[str, float]:
        """A metric's value on every replica that is up, by the replica's name."""
        return gauge(self.url, name)

    def idle(self) -> set[str]:
        """The names of the replicas that are up now, if none of them does anything."""
        return idle(scrape(self.url))

    def interrupt(self) -> int:
        """Ctrl-C in a terminal: every process of the group gets the signal. The exit code."""
        self.family()
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(STOP_SECONDS)

    def survivors(self) -> list[psutil.Process]:
        """Processes ever seen below that are still there."""
        return [process for process in self._seen if process.is_running()]

    def end(self) -> None:
        """Whatever the state, nothing is left."""
        if self.process.poll() is None:
            self.family()
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.survivors():
            process.kill()


@contextmanager
def two_replicas(model: Path, name: str, folder: Path, *flags: str) -> Iterator[Server]:
    """A server of two replicas of two ranks each, called `name`, for as long as the context."""
    server = Server(
        folder / "log",
        *(str(model), "--served-model-name", name, "--dtype", "float32"),
        *("--num-replicas", "2", "-tp", "2", "--kv-cache-memory-bytes", "16MiB"),
        *("--num-threads", "1", *flags),
    )
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.end()


def healthy(server: Server) -> bool:
    """Both of two replicas serve and neither does anything."""
    return len(server.idle()) == 2


def replaced(server: Server, before: set[str], count: int = 1) -> bool:
    """So many of the two replicas named `before` are gone and new, idle ones are in their place."""
    idle = server.idle()
    return len(idle) == 2 and len(before - idle) == count
