"""HTTP/1.1 on one connection, as uvicorn speaks it, with a bound on what comes before a request is
one: nobody holds memory or a connection with headers that do not end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 * 2**10
HEADER_SECONDS = 30.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """Closes itself where the headers of a request have more than `HEADER_BYTES` or take longer
    than `HEADER_SECONDS`; the time runs from the first byte on, for the first request from the
    connection on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unfinished = 0  # bytes of the headers that are coming
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._patience is None or self.transport.is_closing():
            return
        self._unfinished += len(data)
        if self._unfinished > HEADER_BYTES:
            self._headers_came()
            if not self._answering:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._patience is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()

    @property
    def _answering(self) -> bool:
        """Whether an earlier request of the connection is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_headers(self) -> None:
        self._unfinished = 0
        self._patience = self.loop.call_later(HEADER_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._answering:
            self._patience = self.loop.call_later(HEADER_SECONDS, self._lose_patience)
        elif not self.transport.is_closing():
            self.transport.close()

    def _headers_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
