"""Speaks HTTP for an ASGI app on an event loop that somebody else owns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from octavo.cluster.api.connection import Connection
from octavo.cluster.api.settings import Address

DRAIN_SECONDS = 5
BACKLOG = 2048


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process, which knows what else must be ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Listens from its making on; raises OSError where it cannot. The port may be shared with a
    successor, so that a new process can take over from an old one without a gap."""

    def __init__(self, app: FastAPI, address: Address) -> None:
        host, port, self._certificate = address
        self._context = self._certificate.context() if self._certificate is not None else None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY on sockets that say they are TCP's: else a first token waits, up
        # to 40 ms, until the client has acknowledged the headers before it.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise
        settings = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        settings.load()
        settings.ssl = self._context
        self._server = _Uvicorn(settings)
        self._serving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to answer, on the running loop."""
        self._serving = asyncio.create_task(
            self._server.serve(sockets=[self._socket]), name="octavo-http"
        )
        if self._certificate is not None and self._context is not None:
            self._renewing = asyncio.create_task(self._certificate.keep_fresh(self._context))

    @property
    def port(self) -> int:
        """Where it listens, which is for the system to choose where port 0 was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def alive(self) -> bool:
        return self._serving is not None and not self._serving.done()

    async def stop(self) -> None:
        """Takes no more requests, gives those under way `DRAIN_SECONDS`, and closes."""
        self._server.should_exit = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()
