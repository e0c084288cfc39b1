"""Servers of one model, each with the same threads and 16 requests at once: Octavo, vLLM,
llama.cpp. All of them speak OpenAI's API over HTTP and stream."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from peers import client
from peers.client import Figures
from peers.environments import LlamaPlace, VllmPlace
from peers.processes import Running
from peers.setup import ANSWER_TOKENS, Setup, vllm_environment
from peers.workloads import WARM_UP_SEED, Prompts, Workload, random_prompts

START_SECONDS = 900.0
LLAMA_SLOTS = 16
LLAMA_CONTEXT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Server:
    """A ready server, asked over HTTP, and asleep outside of its turns."""

    name: str
    url: str
    model: str
    running: Running

    def turn(self) -> AbstractContextManager[None]:
        return self.running.awake()

    def measure(self, workload: Workload, prompts: Prompts) -> Figures:
        return client.measure(self.url, self.model, prompts, workload.output, workload.in_flight)

    def chat(self, question: str) -> str:
        return client.chat(self.url, self.model, question, ANSWER_TOKENS)


@dataclass(slots=True)
class OctavoServer:
    """Octavo's server, started anew for each turn: Ray takes paused processes for dead, and idle
    ones would slow the peers (the two dozen of them take a tenth of one core)."""

    setup: Setup
    name: str = "Octavo"
    _ready: Server | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        port = free_port()
        command = [sys.executable, "-P", "-m", "octavo.cluster.cli.main", "serve"]
        options = ["--port", str(port), "--num-threads", str(self.setup.threads)]
        with _started(self.name, self.setup, [*command, self.setup.model, *options], port, {}) as (
            self._ready
        ):
            yield

    def measure(self, workload: Workload, prompts: Prompts) -> Figures:
        assert self._ready is not None
        return self._ready.measure(workload, prompts)

    def chat(self, question: str) -> str:
        assert self._ready is not None
        return self._ready.chat(question)


@contextmanager
def vllm(setup: Setup, place: VllmPlace) -> Iterator[Server]:
    port = free_port()
    options = ["--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port)]
    if setup.vllm_eager:
        options.append("--enforce-eager")
    command = [place.program, "serve", setup.model, *options]
    with _started("vLLM", setup, command, port, vllm_environment(setup, place)) as server:
        server.running.pause()
        yield server


@contextmanager
def llama(setup: Setup, place: LlamaPlace) -> Iterator[Server]:
    port, threads = free_port(), str(setup.threads)
    options = ["--threads", threads, "--threads-batch", threads, "--ctx-size", str(LLAMA_CONTEXT)]
    options += ["--parallel", str(LLAMA_SLOTS), "--host", "127.0.0.1", "--port", str(port)]
    command = [place.program("llama-server"), "-m", place.model, *options]
    with _started("llama-server", setup, command, port, {}) as server:
        server.running.pause()
        yield server


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _started(
    name: str, setup: Setup, command: Sequence[object], port: int, environment: dict[str, str]
) -> Iterator[Server]:
    """Ready and warm; ended at the end of the block."""
    setup.say(f"starting {name}'s server")
    url = f"http://127.0.0.1:{port}"
    begin = time.monotonic()
    with Running(command, setup.logs / f"{name}-server.log", environment) as running:
        while not client.healthy(url):
            if not running.alive() or time.monotonic() > begin + START_SECONDS:
                raise running.failure("did not become ready")
            time.sleep(0.2)
        model = client.served_model(url)
        client.measure(url, model, random_prompts(16, 128, WARM_UP_SEED), 8, 16)
        setup.say(f"{name}'s server is ready after {time.monotonic() - begin:.0f} s")
        yield Server(name, url, model, running)
