"""Tokens a second that the front alone can carry: HTTP, checking, detokenizing, streaming.

    python benchmarks/front.py [--streams 1 16 64 256] [--tokens 256]

The real front, in this process, over an engine that has every token at hand: as soon as all live
streams have taken theirs, each gets its next one, as after a step. Clients sit in another process
and read bytes. A core's worth is what one core would carry: tokens / seconds of processor time, for
the front is one process, and clients take the other core here. A request's own cost is told from
that of a token by a second run with answers of a quarter of the length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import time
from collections.abc import AsyncGenerator
from multiprocessing.connection import Connection
from pathlib import Path

from driver import embedded_model, say
from machine import describe, probe, row

from octavo.cluster.api.app import create_app
from octavo.cluster.api.server import HttpServer
from octavo.cluster.api.settings import Address, FrontSettings
from octavo.cluster.observer import Observer
from octavo.cluster.picture import Look
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats
from octavo.cluster.streams import Streams
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.scheduler import Scheduler

HOST = "127.0.0.1"
MAX_LEN = 8192


class Ready:
    """An `EngineClient` whose every step is done at once, for all live requests."""

    def __init__(self) -> None:
        source = random.Random(0)
        self._tokens = [source.randrange(100, 40_000) for _ in range(4096)]
        self._streams = Streams()
        self._left: dict[str, int] = {}
        self._untaken = 0
        config = SchedulerConfig(MAX_LEN, block_size=16)
        self._observer = Observer(Scheduler(config, Capacity(4096, 16)))

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        assert request.sampling.max_tokens is not None
        self._streams.open(request)
        self._left[request.id] = request.sampling.max_tokens
        try:
            async for event in self._streams.read(request.id):
                self._untaken -= 1
                yield event
        finally:
            self._streams.close(request.id)
            self._left.pop(request.id, None)

    async def run(self) -> None:
        while True:
            if not self._left:
                await asyncio.sleep(0.001)
            events = []
            for name, left in list(self._left.items()):
                token = self._tokens[left % len(self._tokens)]
                finish = Finish.LENGTH if left == 1 else None
                events.append(TokenEvent(name, [token], finish))
                self._left[name] = left - 1
                if finish is not None:
                    del self._left[name]
            self._untaken += len(events)
            self._streams.deliver(events)
            while self._untaken:
                await asyncio.sleep(0)

    def abort(self, request_id: str, index: int) -> None:
        self._streams.give_up(request_id, index)

    def stats(self) -> list[EngineStats]:
        return [self._observer.snapshot("0", None, 0.0, 0.0)]

    async def ensure_up(self) -> None:
        pass

    def fault(self) -> str | None:
        return None

    async def reset_prefix_cache(self) -> int:
        return 1

    async def debug_blocks(self) -> list[bytes]:
        return []

    async def debug_look(self, look: Look) -> bytes:
        return b""

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        raise NotImplementedError


async def one_stream(port: int, tokens: int, chat: bool) -> int:
    """Events of one streamed answer, read as bytes."""
    body: dict[str, object] = {"max_tokens": tokens, "ignore_eos": True, "stream": True}
    if chat:
        body["messages"] = [{"role": "user", "content": "Count for as long as you can."}]
    else:
        body["prompt"] = list(range(100, 228))
    raw = json.dumps(body).encode()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(head.encode() + raw)
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200") or b"[DONE]" not in answer:
        raise SystemExit(f"not an answer: {answer[:300]!r}")
    return answer.count(b"data: ") - 1


def clients(port: int, orders: Connection) -> None:
    """A process of clients: answers (streams, requests, tokens, chat) with the events read."""

    async def serve(streams: int, requests: int, tokens: int, chat: bool) -> int:
        gate = asyncio.Semaphore(streams)

        async def one() -> int:
            async with gate:
                return await one_stream(port, tokens, chat)

        return sum(await asyncio.gather(*(one() for _ in range(requests))))

    while (order := orders.recv()) is not None:
        orders.send(asyncio.run(serve(*order)))


async def measure(
    orders: Connection, streams: int, requests: int, tokens: int, chat: bool
) -> tuple[float, float]:
    """Seconds by the clock and of this process's processor time."""
    began, used = time.perf_counter(), time.process_time()
    orders.send((streams, requests, tokens, chat))
    while not orders.poll():
        await asyncio.sleep(0.005)
    events = orders.recv()
    if events < 0.9 * requests * tokens:  # some tokens wait for the rest of their character
        raise SystemExit(f"{requests * tokens} tokens came in no more than {events} events")
    return time.perf_counter() - began, time.process_time() - used


async def compare(args: argparse.Namespace, orders: Connection, port: int) -> None:
    client = Ready()
    app = create_app(client, FrontSettings(str(args.model), ("model",)))
    server = HttpServer(app, Address(HOST, port))
    server.start()
    steps = asyncio.create_task(client.run())
    print(describe(), "\n")
    columns = "endpoint", "streams", "tokens/s", "tokens/s a core", "microseconds a token"
    print(row(*columns, "ms a request", "probe"))
    print(row(*["---"] * 7))
    await measure(orders, 4, 8, 16, True)
    for chat in (False, True):
        for streams in args.streams:
            name = "chat" if chat else "completions"
            say(f"{name}, {streams} streams")
            speed = probe(1)
            requests = max(streams, 16)
            wall, used = await measure(orders, streams, requests, args.tokens, chat)
            _, fewer = await measure(orders, streams, requests, args.tokens // 4, chat)
            total = requests * args.tokens
            each = (used - fewer) / (total - requests * (args.tokens // 4))
            own = used / requests - each * args.tokens
            cells = f"{total / wall:,.0f}", f"{total / used:,.0f}", f"{each * 1e6:.0f}"
            print(row(name, streams, *cells, f"{own * 1e3:.1f}", speed), flush=True)
    steps.cancel()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="whose tokenizer; default: the embedded model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    others = multiprocessing.get_context("spawn").Process(target=clients, args=(port, theirs))
    others.start()
    try:
        asyncio.run(compare(args, ours, port))
    finally:
        ours.send(None)
        others.join(10)


if __name__ == "__main__":
    main()
