"""The copy line of a GPU: a stream beside the one that computes, fenced by events.

The host's blocks are pinned, so that a copy neither blocks this thread nor goes by way of another
buffer. The main line is the stream that is current when it is spoken of; here, to wait is to have
that stream wait, never the thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.workers.tiers import Pair, Tiers


@dataclass(frozen=True, slots=True)
class _Batch:
    """Copies under way: `ticket` is the last of them."""

    ticket: int
    began: torch.cuda.Event
    ended: torch.cuda.Event


class CopyStream(Tiers):
    """The device cache is on a GPU, the host blocks are pinned memory."""

    def __init__(self, cache: Tensor, host: Tensor, kernels: Kernels) -> None:
        super().__init__(cache, host, kernels)
        self._device = cache.device
        self._stream = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        self._batches: deque[_Batch] = deque()
        self._finished = 0
        self._reported = 0
        self._seconds = 0.0

    def take_copied(self) -> tuple[int, float]:
        blocks, seconds = self._done() - self._reported, self._seconds
        self._reported, self._seconds = self._finished, 0.0
        return blocks, seconds

    def _enqueue(self, pairs: list[Pair], inward: bool) -> None:
        batch = _Batch(self._issued, _event(), _event())
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            batch.began.record()
            for source, target in pairs:
                if inward:
                    self._device_blocks[target].copy_(self._host_blocks[source], non_blocking=True)
                else:
                    self._host_blocks[target].copy_(self._device_blocks[source], non_blocking=True)
            batch.ended.record()
        self._batches.append(batch)

    def _done(self) -> int:
        while self._batches and _is_over(self._batches[0]):
            batch = self._batches.popleft()
            self._finished = batch.ticket
            self._seconds += batch.began.elapsed_time(batch.ended) / 1000
        return self._finished

    def _await(self, ticket: int) -> None:
        for batch in self._batches:
            if batch.ticket >= ticket:
                torch.cuda.current_stream(self._device).wait_event(batch.ended)
                return


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _is_over(batch: _Batch) -> bool:
    return bool(batch.ended.query())  # type: ignore[no-untyped-call]
