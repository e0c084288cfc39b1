"""The copy line of a GPU: a stream for each direction beside the one that computes, fenced by
events. A GPU copies in both directions at once, as each has an engine of its own.

The host's blocks are pinned, so that a copy neither blocks this thread nor goes by way of another
buffer. The main line is the stream that is current when it is spoken of; here, to wait is to have
a stream wait, never the thread.

Between the two directions: the main line waits for each copy that comes in as soon as that is asked
for, and what goes out waits for the main line, so it needs no fence against what came in before. A
copy that comes in waits for those outward ones that write a host block that it reads, or read a
device block that it writes, and overtakes all others.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.workers.crossing import Crossing, Gathering
from octavo.workers.tiers import Pair, Tiers
from octavo.workers.transfers import Copy, cuda_copy


class Event(Protocol):
    """A place in a stream."""

    def record(self) -> None:
        """Here, in the current stream."""

    def query(self) -> bool:
        """Whether the stream has got there."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another place, both of which have been reached."""


class Stream(Protocol):
    def wait_stream(self, stream: Any) -> None:
        """What this stream is given next comes after all that the other was given so far."""

    def wait_event(self, event: Any) -> None:
        """What this stream is given next comes after a recorded event."""


class Streams(Protocol):
    """Of one GPU. The tests have one that makes what it was given as late, or as early, as the
    waits between streams allow."""

    def make(self) -> Stream: ...

    def current(self) -> Stream: ...

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """`stream` is the current one inside."""

    def event(self) -> Event: ...


class CudaStreams:
    """By torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def make(self) -> Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current(self) -> Stream:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def event(self) -> Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Line:
    """One direction."""

    stream: Stream
    crossing: Crossing


@dataclass(frozen=True, slots=True)
class _Batch:
    """Copies under way: `ticket` is the last of them."""

    ticket: int
    began: Event
    ended: Event


class CopyStream(Tiers):
    """The device cache is on a GPU, the host blocks are pinned memory."""

    def __init__(
        self,
        cache: Tensor,
        host: Tensor,
        kernels: Kernels,
        streams: Streams | None = None,
        copy: Copy | None = None,
        gathering: Gathering | None = None,
    ) -> None:
        super().__init__(cache, host, kernels)
        self._streams = streams or CudaStreams(cache.device)
        copy, gathering = copy or cuda_copy(), gathering or Gathering()
        self._lines = {
            inward: _Line(
                self._streams.make(),
                Crossing(self._device_blocks, host, kernels, copy, inward, gathering),
            )
            for inward in (False, True)
        }
        self._host_writers: dict[int, int] = {}  # host block -> the last ticket that writes it
        self._batches: deque[_Batch] = deque()
        self._finished = 0
        self._reported = 0
        self._seconds = 0.0

    def take_copied(self) -> tuple[int, float]:
        blocks, seconds = self._done() - self._reported, self._seconds
        self._reported, self._seconds = self._finished, 0.0
        return blocks, seconds

    def _enqueue(self, pairs: list[Pair], inward: bool) -> None:
        batch = _Batch(self._issued, self._streams.event(), self._streams.event())
        line = self._lines[inward]
        line.stream.wait_stream(self._streams.current())
        if inward:
            self._wait_for_outward(line.stream, pairs)
        with self._streams.on(line.stream):
            batch.began.record()
            line.crossing.carry(pairs)
            batch.ended.record()
        self._batches.append(batch)
        if not inward:
            first = self._issued - len(pairs) + 1
            self._host_writers |= {host: ticket for ticket, (_, host) in enumerate(pairs, first)}

    def _wait_for_outward(self, stream: Stream, pairs: list[Pair]) -> None:
        """Has the copies `pairs` come after those that write what they read, or read what they
        write."""
        done = self._done()
        last = 0
        for source, target in pairs:
            written, read = self._host_writers.get(source, 0), self._readers.get(target, 0)
            last = max(last, written, read)
        if last > done:
            self._wait(stream, last)

    def _done(self) -> int:
        while self._batches and self._batches[0].ended.query():
            batch = self._batches.popleft()
            self._finished = batch.ticket
            self._seconds += batch.began.elapsed_time(batch.ended) / 1000
        return self._finished

    def _await(self, ticket: int) -> None:
        self._wait(self._streams.current(), ticket)

    def _wait(self, stream: Stream, ticket: int) -> None:
        for batch in self._batches:
            if batch.ticket >= ticket:
                stream.wait_event(batch.ended)
                return
