"""Moves blocks between the device and the host beside the computing, and keeps the two apart.

Two lines of work run side by side: the main line computes and copies within the device, the copy
line carries blocks between the tiers, as if in the order it is told. Every block that crosses gets
a ticket, counted up. Before the main line goes on it waits for the tickets of what it is about to
read (blocks that come in) and of what it is about to overwrite (blocks that are still read), and
for no others: a step that touches no block in transfer never waits. The copy line in turn starts
nothing before the main line has done what came earlier.

This file knows the order and the fences. How a copy runs, and what waiting means, is in
`copy_thread` for CPUs and in `copy_stream` for GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import StepPlan, Work
from octavo.workers.upload import upload

Pair = tuple[int, int]  # source and target block


class Tiers(ABC):
    """The device cache `[num_blocks, ...]` and the host blocks, uint8 `[num_blocks, block_bytes]`.

    For each plan in turn: `before`, then the computing, then `after`.
    """

    def __init__(self, cache: Tensor, host: Tensor, kernels: Kernels) -> None:
        self._cache = cache
        self._kernels = kernels
        self._host_blocks = host
        self._device_blocks = cache.view(len(cache), -1).view(torch.uint8)
        self._issued = 0
        self._readers: dict[int, int] = {}  # device block -> the last ticket that reads it

    def before(self, plan: StepPlan, written: Iterable[int]) -> None:
        """Does a plan's swap_out, swap_in and copy. On return the main line may compute what
        writes the device blocks `written`, which are looked at only if something is in transfer."""
        self._carry_out(plan.swap_out)
        if plan.swap_in:
            self._carry(plan.swap_in, inward=True)
            self._await(self._issued)
        for pairs in independent(plan.copy):
            self._fence(target for _, target in pairs)
            (flat,) = upload([np.array(pairs, np.int64).ravel()], self._cache.device)
            self._kernels.copy_blocks(self._cache, flat.view(-1, 2))
        self._fence(written)

    def after(self, plan: StepPlan) -> None:
        """Does a plan's store, once its computing is done (on a GPU: is under way)."""
        self._carry_out(plan.store)

    @abstractmethod
    def take_copied(self) -> tuple[int, float]:
        """Blocks that have crossed since the last call, and the seconds that this took."""

    def _carry_out(self, pairs: list[Pair]) -> None:
        if not pairs:
            return
        first = self._issued + 1
        self._carry(pairs, inward=False)
        for ticket, (block, _) in enumerate(pairs, first):
            self._readers[block] = ticket

    def _carry(self, pairs: list[Pair], inward: bool) -> None:
        self._issued += len(pairs)
        self._enqueue(pairs, inward)

    def _fence(self, written: Iterable[int]) -> None:
        """The main line's next work comes after every copy that reads a block of `written`."""
        if not self._readers:
            return
        done = self._done()
        if done == self._issued:
            self._readers.clear()
            return
        last = max((self._readers.get(block, 0) for block in written), default=0)
        if last > done:
            self._await(last)

    @abstractmethod
    def _enqueue(self, pairs: list[Pair], inward: bool) -> None:
        """Gives the copy line pairs of blocks, host to device if `inward`, else device to host.
        Their tickets are the last `len(pairs)` issued; they come after all that the main line has
        been given so far, and after all copies that touch one of their blocks."""

    @abstractmethod
    def _done(self) -> int:
        """The last ticket known to be done, and with it all before."""

    @abstractmethod
    def _await(self, ticket: int) -> None:
        """The main line's next work comes after this ticket's copy, and all before it that go the
        same way."""


def independent(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Cuts copies, meant one after another, into the fewest runs that may each be done in any
    order: the scheduler may hand out a block that was freed by the copy before."""
    run: list[Pair] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, target in pairs:
        if source in written or target in written or target in read:
            yield run
            run, read, written = [], set(), set()
        run.append((source, target))
        read.add(source)
        written.add(target)
    if run:
        yield run


def written_blocks(work: Iterable[Work], rows: Mapping[int, Row], block_size: int) -> Iterator[int]:
    """The device blocks into which `work` writes keys and values."""
    for item in work:
        if item.count:
            first = item.start // block_size
            end = -(-(item.start + item.count) // block_size)
            yield from rows[item.row].table[first:end]
