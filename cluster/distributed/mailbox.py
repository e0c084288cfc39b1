"""One-way messages between processes over ZeroMQ: a reader binds, any number of writers connect.

Tokens on their way to an ingress and notices on their way to a terminal travel like this. An
address carries a key (see `octavo.workers.curve`), so that only those who were given it can write.
Messages are opaque bytes. A writer never blocks: a reader that does not keep up, or is gone, costs
the writer nothing but the messages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message, recv_monitor_message

from octavo.workers.curve import dial, listen

QUEUED_MESSAGES = 10_000
UNACKNOWLEDGED_SECONDS = 10.0  # a machine that is gone closes no connection
_LOSSES = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)


class Letter(NamedTuple):
    """A message and the number of the connection that it came by."""

    body: bytes
    way: int


class Inbox:
    """Reads messages on the running asyncio loop."""

    def __init__(self, node: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        self._news = self._socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        key = listen(self._socket)
        port = self._socket.bind_to_random_port(f"tcp://{node}")
        self.address = f"{key}@tcp://{node}:{port}"

    async def receive(self) -> Letter:
        """The next message."""
        frame = await self._socket.recv(copy=False)
        return Letter(frame.bytes, int(frame.get(zmq.SRCFD)))

    async def hung_up(self) -> int:
        """The next connection that ends, which is known as soon as its writer's process has. There
        may be messages of it that are not yet read, and its number may be given to a new one."""
        news = parse_monitor_message(await self._news.recv_multipart())
        return int(news["value"])

    def close(self) -> None:
        self._context.destroy(linger=0)


class Outbox:
    """Writes to one inbox. For one thread. A connection that is lost is not made again, since
    nobody knows what was lost with it: messages arrive without a gap, or no more."""

    def __init__(self, address: str) -> None:
        key, _, endpoint = address.rpartition("@")
        self._context = zmq.Context()
        self._socket: zmq.Socket[Any] = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.TCP_MAXRT, round(UNACKNOWLEDGED_SECONDS * 1e3))
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        dial(self._socket, key)
        self._connected: bool | None = None
        self._news = self._socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | _LOSSES)
        self._socket.connect(endpoint)

    @property
    def connected(self) -> bool | None:
        """Whether the reader is there; None while that is not known yet."""
        while self._connected is not False and self._news.poll(0):
            event = recv_monitor_message(self._news)["event"]
            self._connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
        return self._connected

    def send(self, message: bytes) -> bool:
        """False where the reader is so far behind, or gone, that the message was dropped."""
        try:
            self._socket.send(message, flags=zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, linger_ms: int = 200) -> None:
        """Waits that long, at most, for messages on their way."""
        self._context.destroy(linger=linger_ms)
