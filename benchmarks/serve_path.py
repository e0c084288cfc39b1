"""What the way through Octavo costs when the model costs nothing: ingress, router, replica,
scheduler, step channel and the null worker, beside a bare FastAPI that streams as many events.

    python benchmarks/serve_path.py [--in-flight 1 16 64] [--tokens 128] [--rounds 3]

Three sides take turns in one run: FastAPI and uvicorn in one process, whose every event is at hand;
Octavo as `octavo serve` has it, where the ingress listens itself; and the same ingress behind
Ray Serve's proxy, as `octavo deploy` has it. Clients sit in a process of their own and read bytes.
Each turn is run with answers of the full length and of a quarter of it, which tells the cost of a
token from that of a request. `us a token` and `ms a request` are processor time: of all of a side's
processes, and of which ones. `ms to first` and `ms an answer` are what a client waits. Figures are
medians over the rounds.

The null worker answers at once, so a step is as short as it can be, and brings fewer tokens than
one of a real model with as many in flight: what a token costs here is an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import socket
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import uvicorn
from driver import embedded_model, say
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from machine import describe, probe, row
from pydantic import BaseModel

HOST, PROMPT, VOCABULARY, MAX_LEN = "127.0.0.1", 128, 40_000, 4096
START_SECONDS = 120.0
SPAWN = multiprocessing.get_context("spawn")
BARE = "FastAPI alone"
PARTS = {
    "ingress": "ray::ServeReplica:octavo:Ingress",
    "proxy": "ray::ProxyActor",
    "replica": "ray::ServeReplica:octavo:Replica",
    "scheduler": "ray::SchedulerActor",
    "worker": "ray::WorkerActor",
}
OTHER = "Ray's own"


@dataclass(frozen=True, slots=True)
class Turn:
    """So many requests, a bounded number of them at once."""

    stream: bool
    in_flight: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Waited:
    """By the clock: seconds of a turn, and the medians of a client's waits."""

    wall: float
    first: float
    answer: float


class Call(BaseModel):
    """What the bare FastAPI reads of a request."""

    prompt: list[int]
    max_tokens: int
    stream: bool = False


def bare(port: int) -> None:
    """A process: the least that a FastAPI does which answers in the same form."""
    app = FastAPI()

    def piece(text: str) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        fixed = {"id": "cmpl-0", "object": "text_completion", "model": "bare"}
        return {**fixed, "created": int(time.time()), "choices": [choice]}

    async def events(count: int) -> AsyncIterator[str]:
        for _ in range(count):
            yield f"data: {json.dumps(piece(' leaf'))}\n\n"
            await asyncio.sleep(0)  # the other streams have their turn, as they have after a step
        yield "data: [DONE]\n\n"

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/completions", response_model=None)
    async def completions(call: Call) -> dict[str, Any] | StreamingResponse:
        if call.stream:
            return StreamingResponse(events(call.max_tokens), media_type="text/event-stream")
        usage = {"prompt_tokens": len(call.prompt), "completion_tokens": call.max_tokens}
        return {**piece(" leaf" * call.max_tokens), "usage": usage}

    uvicorn.run(app, host=HOST, port=port, log_level="warning")


async def ask(port: int, turn: Turn, number: int) -> tuple[float, float]:
    """Seconds to the first token and to the end of one answer. No two prompts begin alike."""
    prompt = [100 + number % VOCABULARY, *range(100, 99 + PROMPT)]
    fields = {"prompt": prompt, "max_tokens": turn.tokens, "ignore_eos": True, "temperature": 0}
    raw = json.dumps({**fields, "stream": turn.stream}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    )
    began, first = time.perf_counter(), 0.0
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(head.encode() + raw)
    answer = bytearray()
    while piece := await reader.read(65536):
        answer += piece
        if not first and (b"data: " in answer or not turn.stream):
            first = time.perf_counter() - began
    whole = time.perf_counter() - began
    writer.close()
    if turn.stream:  # some tokens wait for the rest of their character
        right = b"[DONE]" in answer and answer.count(b"data: ") > 0.9 * turn.tokens
    else:
        right = b'"completion_tokens":%d' % turn.tokens in answer
    if not answer.startswith(b"HTTP/1.1 200") or not right:
        raise SystemExit(f"not such an answer: {bytes(answer[:300])!r}")
    return first, whole


def clients(orders: Connection) -> None:
    """A process: does each (port, turn) that it is sent, and answers with what was waited."""
    numbers = iter(range(10**9))

    async def serve(port: int, turn: Turn) -> Waited:
        gate = asyncio.Semaphore(turn.in_flight)

        async def one() -> tuple[float, float]:
            async with gate:
                return await ask(port, turn, next(numbers))

        began = time.perf_counter()
        waits = await asyncio.gather(*(one() for _ in range(turn.requests)))
        wall = time.perf_counter() - began
        firsts, answers = zip(*waits, strict=True)
        return Waited(wall, statistics.median(firsts), statistics.median(answers))

    while True:
        orders.send(asyncio.run(serve(*orders.recv())))


@contextlib.contextmanager
def octavo(model: Path, ports: tuple[int, int], replicas: int) -> Iterator[None]:
    """The whole of Octavo over null workers: its ingress listens at the first of `ports`, and
    Serve's proxy at the second."""
    from octavo.cluster.config import EngineConfig
    from octavo.cluster.distributed.ray_cluster import RayCluster

    config = EngineConfig(str(model), ("null",), num_replicas=replicas)
    cluster = RayCluster(address=None, dashboard=False)
    cluster.start(config)
    try:
        from ray import serve

        from octavo.cluster.api.settings import Address, FrontSettings
        from octavo.cluster.distributed.actors import ReplicaSpec
        from octavo.cluster.distributed.serve_app import ServedModel, build_app
        from octavo.workers.null import NullWorker

        def build(rank: int, size: int, meeting: str) -> NullWorker:
            return NullWorker(16, vocab_size=VOCABULARY, num_blocks=8192, rank=rank)

        spec = ReplicaSpec(config, build, MAX_LEN)
        settings = FrontSettings(str(model), ("null",))
        served = ServedModel("Replica", config, lambda: spec, lambda: settings)
        http = {"host": HOST, "port": ports[1], "location": "HeadOnly"}
        serve.start(http_options=http)
        serve.run(build_app([served], Address(HOST, ports[0])), name="octavo", route_prefix="/")
        yield
    finally:
        cluster.stop()


def wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody answers at port {port}") from None
        time.sleep(0.2)


def part_of(process: psutil.Process) -> str:
    title = " ".join(process.cmdline()[:1])
    return next((part for part, begin in PARTS.items() if title.startswith(begin)), OTHER)


def spent(processes: dict[psutil.Process, str]) -> Counter[str]:
    """Seconds of processor time so far, by part."""
    total: Counter[str] = Counter()
    for process, part in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total[part] += times.user + times.system
    return total


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one side in one round. Processor seconds, by part, of a token and of a request."""

    long: Waited
    token: dict[str, float]
    request: dict[str, float]


class Bench:
    """`sides`: the port of each, and its processes with the part that each plays."""

    def __init__(
        self, orders: Connection, sides: dict[str, tuple[int, dict[psutil.Process, str]]]
    ) -> None:
        self._orders = orders
        self.sides = sides

    def do(self, side: str, turn: Turn) -> tuple[Waited, Counter[str]]:
        """The waits of a turn, and the processor time by part."""
        port, processes = self.sides[side]
        before = spent(processes)
        self._orders.send((port, turn))
        waited: Waited = self._orders.recv()
        after = spent(processes)
        return waited, Counter({part: after[part] - before[part] for part in after})

    def cost(self, side: str, turn: Turn) -> Cost:
        few = Turn(turn.stream, turn.in_flight, turn.requests, turn.tokens // 4)
        waited, used = self.do(side, turn)
        _, less = self.do(side, few)
        tokens = turn.requests * (turn.tokens - few.tokens)
        token = {part: (used[part] - less[part]) / tokens for part in used}
        request = {part: used[part] / turn.requests - token[part] * turn.tokens for part in used}
        return Cost(waited, token, request)


def by_part(costs: list[dict[str, float]], unit: float, form: str) -> str:
    """The sum, and where there are several what each part has of it."""
    whole = f"{statistics.median(sum(cost.values()) for cost in costs) / unit:{form}}"
    if len(costs[0]) == 1:
        return whole
    medians = {part: statistics.median(cost[part] for cost in costs) for part in costs[0]}
    there = [part for part in (*PARTS, OTHER) if part in medians]
    return f"{whole}: " + ", ".join(f"{part} {medians[part] / unit:{form}}" for part in there)


def figures(costs: list[Cost], turn: Turn) -> list[str]:
    """The cells of one row."""
    wall = statistics.median(cost.long.wall for cost in costs)
    first = statistics.median(cost.long.first for cost in costs)
    answer = statistics.median(cost.long.answer for cost in costs)
    return [
        f"{turn.requests / wall:,.0f}",
        f"{turn.requests * turn.tokens / wall:,.0f}",
        f"{first * 1e3:.1f}" if turn.stream else "",
        f"{answer * 1e3:.1f}",
        by_part([cost.token for cost in costs], 1e-6, ".0f"),
        by_part([cost.request for cost in costs], 1e-3, ".1f"),
    ]


def compare(bench: Bench, args: argparse.Namespace) -> None:
    for side in bench.sides:
        bench.do(side, Turn(True, 16, 64, args.tokens))  # what is new to a process is slow once
    print(describe(), "\n")
    columns = "answers", "in flight", "side", "requests/s", "tokens/s", "ms to first"
    print(row(*columns, "ms an answer", "us a token", "ms a request", "probe"))
    print(row(*["---"] * 10))
    for stream in (False, True):
        for in_flight in args.in_flight:
            turn = Turn(stream, in_flight, max(args.requests, 2 * in_flight), args.tokens)
            found: dict[str, list[Cost]] = {side: [] for side in bench.sides}
            speeds: dict[str, list[str]] = {side: [] for side in bench.sides}
            for number in range(args.rounds):
                for side, costs in found.items():
                    say(f"{'streamed' if stream else 'whole'}, {in_flight}, {side}, {number}")
                    speeds[side].append(probe(1))
                    costs.append(bench.cost(side, turn))
            for side, costs in found.items():
                name = "streamed" if stream else "whole"
                probes = "; ".join(speeds[side])
                print(row(name, in_flight, side, *figures(costs, turn), probes), flush=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="whose tokenizer; default: the embedded model")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=64, help="a turn, twice in flight at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()
    model = args.model or embedded_model()
    ports = free_port(), free_port(), free_port()
    with octavo(model, ports[:2], args.replicas):
        family = psutil.Process().children(recursive=True)
        ours, theirs = SPAWN.Pipe()
        asking = SPAWN.Process(target=clients, args=(theirs,))
        echo = SPAWN.Process(target=bare, args=(ports[2],))
        asking.start()
        echo.start()
        theirs.close()  # so that an end of the clients is an end here
        try:
            for port in ports:
                wait_until_healthy(port)
            parts = {process: part_of(process) for process in family if process.is_running()}
            direct = {process: part for process, part in parts.items() if part != "proxy"}
            sides = {
                BARE: (ports[2], {psutil.Process(echo.pid): BARE}),
                "Octavo": (ports[0], direct),
                "Octavo, Serve's proxy": (ports[1], parts),
            }
            compare(Bench(ours, sides), args)
        finally:
            for process in (asking, echo):
                process.terminate()
                process.join()


if __name__ == "__main__":
    main()
