"""One-way messages between processes over ZeroMQ: a reader binds, any number of writers connect.

Tokens on their way to an ingress and notices on their way to a terminal travel like this. An
address carries a key (see `octavo.workers.curve`), so that only those who were given it can write.
Messages are opaque bytes. A writer never blocks: a reader that does not keep up, or is gone, costs
the writer nothing but the messages.
"""

from __future__ import annotations

from typing import Any

import zmq
import zmq.asyncio

from octavo.workers.curve import dial, listen

QUEUED_MESSAGES = 10_000


class Inbox:
    """Reads messages on the running asyncio loop."""

    def __init__(self, node: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        key = listen(self._socket)
        port = self._socket.bind_to_random_port(f"tcp://{node}")
        self.address = f"{key}@tcp://{node}:{port}"

    async def receive(self) -> bytes:
        """The next message."""
        return await self._socket.recv()

    def close(self) -> None:
        self._context.destroy(linger=0)


class Outbox:
    """Writes to one inbox. For one thread."""

    def __init__(self, address: str) -> None:
        key, _, endpoint = address.rpartition("@")
        self._context = zmq.Context()
        self._socket: zmq.Socket[Any] = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        dial(self._socket, key)
        self._socket.connect(endpoint)

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
