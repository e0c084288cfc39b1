"""The worker's end of the step channel: plans in, results and heartbeats out, over ZeroMQ.

Blocking by design: a worker has nothing to do without a plan. Plans carry the channel's own number,
so that a lost frame is asked for again before anything is computed and every rank executes the
same plans in the same order. Knows nothing of Ray, of models, or of what a plan says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import zmq

from octavo.workers.curve import dial
from octavo.workers.progress import Progress, Tally

BEAT_SECONDS = 1.0
LOOK_MS = 1  # how often to see to what is under way while no plan comes
HELLO, PLAN, STOP = b"h", b"p", b"s"


class Link(msgspec.Struct, frozen=True):
    """Where a group meets; `key` keeps others out (see `octavo.workers.curve`)."""

    plans: str  # tcp address the scheduler publishes on
    answers: str  # tcp address it listens on
    key: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The rank hears the publisher: from here on it misses no plan."""

    rank: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Sent every `BEAT_SECONDS` by a thread of its own: the process lives.

    `received` is the last plan taken from the wire; `ticks` moves while a plan is executed; `tally`
    is what its steps took.
    """

    rank: int
    pid: int
    node: str
    received: int
    ticks: int
    tally: Tally = Tally()


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Rank 0's result of plan `number`."""

    rank: int
    number: int
    result: bytes


class Stray(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The worker's mirror expected another step: the plan was not executed."""

    rank: int
    number: int
    expected: int
    got: int


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Plans from number `first` on did not arrive."""

    rank: int
    first: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The rank cannot go on; `reason` is one line."""

    rank: int
    reason: str


Upward = Ready | Beat | Answer | Stray | Missing | Failed

_encoder = msgspec.msgpack.Encoder()


class WorkerChannel:
    """Use as a context manager, in the thread that executes plans."""

    def __init__(self, link: Link, rank: int, node: str, progress: Progress) -> None:
        self._link = link
        self._rank = rank
        self._node = node
        self._progress = progress
        self._received = 0
        self._closed = threading.Event()
        self._context = zmq.Context()
        self._plans = self._context.socket(zmq.SUB)
        dial(self._plans, link.key)
        self._answers = self._pusher()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> WorkerChannel:
        self._plans.setsockopt(zmq.SUBSCRIBE, b"")
        self._plans.connect(self._link.plans)
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._beats.join()
        self._context.destroy(linger=200)

    @property
    def received(self) -> int:
        """The number of the plan handed out last."""
        return self._received

    def plans(self, meanwhile: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
        """Every plan once and in order, until the scheduler says stop. While none comes,
        `meanwhile` is called every millisecond, for as long as it says that it wants to be."""
        while True:
            while meanwhile() and not self._plans.poll(LOOK_MS):
                pass
            kind, number, body = self._plans.recv_multipart()
            if kind == STOP:
                return
            if kind == HELLO:
                self._send(self._answers, Ready(self._rank))
                continue
            arrived = int.from_bytes(number, "big")
            if arrived == self._received + 1:
                self._received = arrived
                yield body
            elif arrived > self._received:
                self._send(self._answers, Missing(self._rank, self._received + 1))

    def answer(self, result: bytes, number: int | None = None) -> None:
        """The result of plan `number`, or of the plan handed out last."""
        answered = self._received if number is None else number
        self._send(self._answers, Answer(self._rank, answered, result))

    def stray(self, expected: int, got: int) -> None:
        """The plan handed out last was not executed: the mirror is at another step."""
        self._send(self._answers, Stray(self._rank, self._received, expected, got))

    def failed(self, reason: str) -> None:
        """Last words."""
        self._send(self._answers, Failed(self._rank, reason))

    def _beat(self) -> None:
        socket = self._pusher()
        while True:
            progress = self._progress
            reached = self._received, progress.ticks, progress.tally
            self._send(socket, Beat(self._rank, os.getpid(), self._node, *reached))
            if self._closed.wait(BEAT_SECONDS):
                socket.close(linger=0)
                return

    def _pusher(self) -> zmq.Socket[Any]:
        socket = self._context.socket(zmq.PUSH)
        dial(socket, self._link.key)
        socket.connect(self._link.answers)
        return socket

    def _send(self, socket: zmq.Socket[Any], message: Upward) -> None:
        socket.send(_encoder.encode(message))
