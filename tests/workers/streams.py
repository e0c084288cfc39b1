"""A GPU's streams, played by hand: what they are given is done when a test says so, in any order
that their waits for each other allow. Stands in for torch's, which need a GPU."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from octavo.kernels.reference import ReferenceKernels
from octavo.workers.transfers import Move, torch_copy


class FakeEvent:
    """Reached when its stream has done all that came before it was recorded."""

    def __init__(self, streams: FakeStreams) -> None:
        self._streams = streams
        self.reached_at: int | None = None

    def record(self) -> None:
        self._streams.current().record(self)

    def query(self) -> bool:
        return self.reached_at is not None

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.reached_at is not None and end_event.reached_at is not None
        return float(end_event.reached_at - self.reached_at)


class FakeStream:
    """`queue` holds work, and events to wait for."""

    def __init__(self, streams: FakeStreams) -> None:
        self._streams = streams
        self.queue: deque[Callable[[], None] | FakeEvent] = deque()

    def do(self, work: Callable[[], None]) -> None:
        self.queue.append(work)

    def record(self, event: FakeEvent) -> None:
        def reach() -> None:
            event.reached_at = self._streams.clock

        self.queue.append(reach)

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(event)

    def wait_stream(self, stream: FakeStream) -> None:
        event = FakeEvent(self._streams)
        stream.record(event)
        self.wait_event(event)

    def advance(self) -> bool:
        """Does what comes next; False if nothing does, or an event is waited for."""
        if not self.queue:
            return False
        head = self.queue[0]
        if isinstance(head, FakeEvent):
            if not head.query():
                return False
            self.queue.popleft()
            return True
        self.queue.popleft()
        self._streams.clock += 1
        head()
        return True


class FakeStreams:
    """`streams[0]` is the main line. `clock` counts what was done."""

    def __init__(self, stream: type[FakeStream] = FakeStream) -> None:
        self._kind = stream
        self.clock = 0
        self.streams = [stream(self)]
        self._current = self.streams[0]

    def make(self) -> FakeStream:
        self.streams.append(self._kind(self))
        return self.streams[-1]

    def current(self) -> FakeStream:
        return self._current

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def copy(self, sources: Tensor, targets: Tensor, moves: Iterable[Move]) -> None:
        """Of `octavo.workers.transfers.Copy`'s kind."""
        for move in moves:
            self._current.do(partial(torch_copy, sources, targets, [move]))

    def advance(self, rng: random.Random, favoured: int | None = None) -> bool:
        """One piece of work of any stream; of the favoured one while it can go on."""
        order = rng.sample(self.streams, len(self.streams))
        if favoured is not None:
            order.sort(key=lambda stream: stream is not self.streams[favoured])
        return any(stream.advance() for stream in order)

    def finish(self, rng: random.Random, favoured: int | None = None) -> None:
        while self.advance(rng, favoured):
            pass
        assert not any(stream.queue for stream in self.streams), "streams wait for each other"


class StreamKernels(ReferenceKernels):
    """Moves blocks in the current stream."""

    def __init__(self, streams: FakeStreams) -> None:
        self._streams = streams

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        copied = torch.clone(pairs)
        self._streams.current().do(lambda: ReferenceKernels.copy_blocks(self, cache, copied))

    def gather_blocks(self, cache: Tensor, blocks: Tensor, out: Tensor) -> None:
        gather = ReferenceKernels.gather_blocks
        self._streams.current().do(partial(gather, self, cache, torch.clone(blocks), out))

    def scatter_blocks(self, staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
        scatter = ReferenceKernels.scatter_blocks
        self._streams.current().do(partial(scatter, self, staged, torch.clone(blocks), cache))
