"""The copy line of a GPU: a stream beside the one that computes, fenced by events.

The host's blocks are pinned, so that a copy neither blocks this thread nor goes by way of another
buffer. The main line is the stream that is current when it is spoken of; here, to wait is to have
that stream wait, never the thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.workers.tiers import Pair, Tiers
from octavo.workers.transfers import Copy, cuda_copy, runs


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
    ) -> None:
        super().__init__(cache, host, kernels)
        self._streams = streams or CudaStreams(cache.device)
        self._copy = copy or cuda_copy()
        self._stream = self._streams.make()
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
        self._stream.wait_stream(self._streams.current())
        tiers = (self._host_blocks, self._device_blocks)
        sources, targets = tiers if inward else tiers[::-1]
        with self._streams.on(self._stream):
            batch.began.record()
            self._copy(sources, targets, runs(pairs))
            batch.ended.record()
        self._batches.append(batch)

    def _done(self) -> int:
        while self._batches and self._batches[0].ended.query():
            batch = self._batches.popleft()
            self._finished = batch.ticket
            self._seconds += batch.began.elapsed_time(batch.ended) / 1000
        return self._finished

    def _await(self, ticket: int) -> None:
        for batch in self._batches:
            if batch.ticket >= ticket:
                self._streams.current().wait_event(batch.ended)
                return
