"""How blocks cross between the tiers of a GPU in one direction: as they lie, or gathered.

A block is one contiguous chunk over all layers, so large blocks cross as they lie, by one copy for
each run of neighbours that go to neighbours. To ask for a copy and to begin it takes microseconds,
though, whatever its size, and a link does 64 KiB in one to three: small blocks cross sooner when a
kernel gathers them in a staging buffer on the device, from which one copy takes all those whose
host blocks are neighbours. On the way back the copy comes first, and a kernel scatters.

Host blocks that are no neighbours are not brought together: that would be a core's work, which
copies a block in the time of the call that it would save. Most are neighbours: the host pool hands
out its blocks in the order in which they were filled or given up, so what a step stores lies
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.workers.tiers import Pair
from octavo.workers.transfers import Copy, runs
from octavo.workers.upload import upload


@dataclass(frozen=True, slots=True)
class Gathering:
    """When blocks are gathered, and in how much room. The thresholds are by what calls and links
    are known to take, and not measured: the part `copies` of scripts/gpu_check.sh says on a machine
    what both ways reach for blocks of several sizes, and these numbers are to follow it."""

    below: int = 128 * 2**10  # bytes of a block: from there on copies reach the link's rate
    saving: int = 16  # copies, that it must do without: a launch takes as long as several
    room: int = 8 * 2**20  # bytes of each direction's staging buffer: half a millisecond's worth

    def pays(self, pairs: Sequence[Pair], host: Sequence[int], block_bytes: int) -> bool:
        """For `pairs` in the order of their blocks in `host`."""
        if block_bytes >= self.below or len(pairs) <= self.saving:
            return False
        of_host = 1 + sum(b != a + 1 for a, b in zip(host, host[1:], strict=False))
        return len(runs(pairs)) - of_host >= self.saving

    def staging_blocks(self, block_bytes: int) -> int:
        """For which each direction has room; more of them are gathered one lot after another."""
        return max(1, self.room // block_bytes) if block_bytes < self.below else 0

    def bytes(self, block_bytes: int) -> int:
        """Of the device, for both directions."""
        return 2 * self.staging_blocks(block_bytes) * block_bytes


class Crossing:
    """One direction, host to device if `inward`. All that it does is done in the stream that is
    current, which must be the same each time: so a lot is gathered only when the last copy from the
    staging buffer is done, and comes in only when the last lot is scattered."""

    def __init__(
        self,
        device: Tensor,
        host: Tensor,
        kernels: Kernels,
        copy: Copy,
        inward: bool,
        gathering: Gathering,
    ) -> None:
        """Both tiers are uint8 `[blocks, bytes]`."""
        self._device, self._host = device, host
        self._kernels = kernels
        self._copy = copy
        self._inward = inward
        self._gathering = gathering
        self._block_bytes = host.shape[1]
        blocks = gathering.staging_blocks(self._block_bytes) if len(host) else 0
        self.staging = device.new_empty(blocks, self._block_bytes)

    def carry(self, pairs: list[Pair]) -> None:
        """Asks for copies of blocks (source, target). No target may come twice."""
        of_host = 0 if self._inward else 1
        pairs = sorted(pairs, key=lambda pair: pair[of_host])
        host = [pair[of_host] for pair in pairs]
        if not self._gathering.pays(pairs, host, self._block_bytes):
            tiers = (self._host, self._device) if self._inward else (self._device, self._host)
            self._copy(*tiers, runs(pairs))
            return
        for first in range(0, len(pairs), len(self.staging)):
            self._carry_lot(pairs[first : first + len(self.staging)])

    def _carry_lot(self, lot: Sequence[Pair]) -> None:
        sources, targets = zip(*lot, strict=True)
        staged, places = self.staging[: len(lot)], range(len(lot))
        if self._inward:
            self._copy(self._host, staged, runs(zip(sources, places, strict=True)))
            self._kernels.scatter_blocks(staged, self._numbers(targets), self._device)
        else:
            self._kernels.gather_blocks(self._device, self._numbers(sources), staged)
            self._copy(staged, self._host, runs(zip(places, targets, strict=True)))

    def _numbers(self, blocks: Sequence[int]) -> Tensor:
        (numbers,) = upload([np.array(blocks, np.int64)], self._device.device)
        return numbers
