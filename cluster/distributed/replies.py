"""The way back from an engine: each step's events, in one message to each ingress that asked.

An ingress is known by its mailbox address and holds a lease, which its regular `attach` renews, and
the connection to it: a replica that drains is called by nobody any more. The requests of an ingress
that is gone are aborted, so a dead client's reader cannot hold blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from octavo.cluster.distributed.mailbox import Outbox
from octavo.cluster.distributed.wire import (
    Begun,
    Held,
    Message,
    Snapshot,
    Taken,
    Tokens,
    encode,
)
from octavo.cluster.stats import EngineStats
from octavo.scheduler.digest import Publisher
from octavo.scheduler.events import StepEvents
from octavo.scheduler.request import Finish, Request

LEASE_SECONDS = 10.0


@dataclass(slots=True)
class _Reader:
    """One ingress, until when it is believed to be there, and whether it has been told all that the
    cache holds."""

    outbox: Outbox
    until: float
    informed: bool = False


@dataclass(slots=True)
class _Open:
    """A request under way; `ended` is set when none of its samples is live any more. `work` are the
    tokens to be computed before its first event."""

    address: str
    live: set[int]
    ended: asyncio.Event
    work: int

    def end(self, index: int) -> None:
        """One sample has ended."""
        self.live.discard(index)
        if not self.live:
            self.ended.set()


def _part(parts: dict[str, StepEvents], address: str) -> StepEvents:
    """That of an ingress, which may be its first."""
    if (part := parts.get(address)) is None:
        part = parts[address] = StepEvents([], [], [])
    return part


class Replies:
    """Those of one `replica`. `abort` is called with the id of each request whose ingress is lost,
    never from within another call. Lives on one asyncio loop."""

    def __init__(
        self, replica: str, abort: Callable[[str], object], now: Callable[[], float]
    ) -> None:
        self._replica = replica
        self._abort = abort
        self._now = now
        self._readers: dict[str, _Reader] = {}
        self._open: dict[str, _Open] = {}
        self.backlog = 0  # tokens to be computed of requests that have had no event yet

    def attach(self, address: str, informed: bool = True) -> None:
        """An ingress is there: it gets snapshots, and tokens of what it asks for. One that is not
        `informed` will be told anew all that the cache holds."""
        until = self._now() + LEASE_SECONDS
        if (reader := self._readers.get(address)) is not None:
            reader.until = until
            reader.informed &= informed
        else:
            self._readers[address] = _Reader(Outbox(address), until)

    def open(self, request: Request, address: str, work: int = 0) -> asyncio.Event:
        """Events of this request go to `address` from now on, where it is known first that the
        request was taken; the returned event is set with the last one of its last sample. It is
        expected that `work` tokens have to be computed before its first event."""
        self.attach(address)
        self._send(address, Taken(self._replica, request.id))
        entry = _Open(address, set(request.live_samples), asyncio.Event(), work)
        self._open[request.id] = entry
        self.backlog += work
        return entry.ended

    def give_up(self, request_id: str, index: int) -> None:
        """The reader wants no more of one sample; it counts as ended."""
        if (entry := self._open.get(request_id)) is not None:
            entry.end(index)

    def close(self, request_id: str) -> None:
        if (entry := self._open.pop(request_id, None)) is not None:
            self._work_off(entry)

    def begin(self, request_ids: list[str]) -> None:
        """These requests are about to run."""
        by_address: dict[str, list[str]] = {}
        for request_id in request_ids:
            if (entry := self._open.get(request_id)) is not None:
                by_address.setdefault(entry.address, []).append(request_id)
        for address, part in by_address.items():
            self._send(address, Begun(part))

    def emit(self, events: StepEvents) -> None:
        """All events of one step."""
        parts: dict[str, StepEvents] = {}
        for name, token in zip(events.names, events.tokens, strict=True):
            if (entry := self._open.get(name)) is not None:
                part = _part(parts, entry.address)
                part.names.append(name)
                part.tokens.append(token)
        for event in events.others:
            entry = self._open.get(event.request_id)
            if entry is None:
                continue  # cancelled meanwhile
            self._work_off(entry)
            _part(parts, entry.address).others.append(event)
            if event.finish in (Finish.ABORT, Finish.ERROR):
                entry.ended.set()
            elif event.finish is not None:
                entry.end(event.index)
        for address, part in parts.items():
            self._send(address, Tokens(part))

    def publish(self, publisher: Publisher) -> None:
        """Tells every ingress what came and went in the cache, or all of it where that is new."""
        changes = publisher.changes()
        told = changes and encode(Held(self._replica, changes))
        whole = b""
        for address, reader in list(self._readers.items()):
            if reader.informed:
                message = told
            else:
                message = whole = whole or encode(Held(self._replica, publisher.whole()))
                reader.informed = True
            if message and not reader.outbox.send(message):
                self._lose(address)

    def snapshot(self, stats: EngineStats) -> None:
        """To every ingress; those that are gone, or whose lease ran out, are given up."""
        now = self._now()
        message = encode(Snapshot(stats))
        for address, reader in list(self._readers.items()):
            connected = reader.outbox.connected
            if connected:
                reader.until = now + LEASE_SECONDS
            if connected is False or reader.until < now:
                self._lose(address)
            else:
                reader.outbox.send(message)

    def close_all(self) -> None:
        """Sends what is on its way and closes."""
        for reader in self._readers.values():
            reader.outbox.close()
        self._readers.clear()

    def _send(self, address: str, message: Message) -> None:
        reader = self._readers.get(address)
        if reader is None or not reader.outbox.send(encode(message)):
            asyncio.get_running_loop().call_soon(self._lose, address)

    def _lose(self, address: str) -> None:
        reader = self._readers.pop(address, None)
        if reader is not None:
            reader.outbox.close(linger_ms=0)
        for request_id in [key for key, entry in self._open.items() if entry.address == address]:
            entry = self._open.pop(request_id)
            self._work_off(entry)
            entry.ended.set()
            self._abort(request_id)

    def _work_off(self, entry: _Open) -> None:
        self.backlog -= entry.work
        entry.work = 0
