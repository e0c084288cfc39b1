"""A real HTTP server around the app, on a free port of this machine, for the length of a `with`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.cluster.api.app import FrontSettings, create_app
from octavo.cluster.client import EngineClient
from octavo.cluster.journal.settings import JournalSettings
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import PreemptionMode, SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.lora_modules import parse_modules
from octavo.workers.worker import Worker

MODEL = "tiny"
OpenClient = Callable[[], AbstractAsyncContextManager[EngineClient]]
OpenApp = Callable[[], AbstractAsyncContextManager[ASGIApp]]


def settings_for(path: Path, **changes: object) -> FrontSettings:
    return FrontSettings(str(path), (MODEL,), **changes)  # type: ignore[arg-type]


def switched(switch: Switch) -> OpenApp:
    @contextlib.asynccontextmanager
    async def enter() -> AsyncIterator[ASGIApp]:
        yield switch

    return enter


def tiny_engine(
    path: Path,
    num_blocks: int = 200,
    max_num_seqs: int = 64,
    step_tokens: int = 256,
    preemption_mode: PreemptionMode = "auto",
    lora_modules: list[str] | None = None,
    journal: Path | None = None,
) -> OpenClient:
    """An engine in the server's event loop, over the real worker on a tiny model."""

    def open_engine() -> LocalEngine:
        config = WorkerConfig(
            model=str(path),
            dtype="float32",
            block_size=16,
            num_blocks_override=num_blocks,
            num_threads=1,
            max_model_len=512,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=step_tokens,
            lora_modules=lora_modules,
        )
        scheduler = SchedulerConfig(
            max_model_len=512,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=step_tokens,
            preemption_mode=preemption_mode,
            adapters=tuple(parse_modules(lora_modules or ())),
        )
        recording = None if journal is None else JournalSettings(journal)
        return LocalEngine(LocalWorkers(lambda: Worker(config)), lambda _: scheduler, recording)

    return open_engine


class Switch:
    """An ASGI app that is whichever app was set last: one server serves many tests."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@contextlib.contextmanager
def serve_engine(open_client: OpenClient, settings: FrontSettings) -> Iterator[str]:
    """The address of a server whose engine lives in the server's event loop."""

    @contextlib.asynccontextmanager
    async def open_app() -> AsyncIterator[ASGIApp]:
        async with open_client() as client:
            yield create_app(client, settings)

    with serve(open_app) as url:
        yield url


@contextlib.contextmanager
def serve(open_app: OpenApp) -> Iterator[str]:
    """The address, `http://127.0.0.1:port`."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()
    failures: list[BaseException] = []
    servers: list[uvicorn.Server] = []

    async def run() -> None:
        async with open_app() as app:
            config = uvicorn.Config(
                app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2
            )
            server = uvicorn.Server(config)
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
            servers.append(server)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            started.set()
            await serving

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main, name="test-server")
    thread.start()
    started.wait()
    try:
        if not failures:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for server in servers:
            server.should_exit = True
        thread.join()
        listener.close()
    if failures:
        raise failures[0]
