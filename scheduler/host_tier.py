"""What goes to the host and why: the content of preempted requests, and of blocks written behind.

Decides and keeps the books; the copies themselves are `moves` that workers execute in order, so a
block counts as copied once the operation is noted.
"""

from __future__ import annotations

from collections import deque

from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.group import Group
from octavo.scheduler.host_pool import HostPool
from octavo.scheduler.moves import Moves
from octavo.scheduler.sequence import Sequence

LOOKS = 64  # blocks looked at for each that a step may write behind: others were overwritten since


class HostTier:
    def __init__(self, pool: BlockPool, host: HostPool, moves: Moves, block_size: int) -> None:
        self.pool = pool
        self.host = host
        self.moves = moves
        self.block_size = block_size
        # Published and perhaps not yet on the host, oldest first. Of more than there are blocks,
        # the oldest were overwritten.
        self._unstored: deque[int] = deque(maxlen=pool.num_blocks)

    def published(self, block: int) -> None:
        """A device block became final and findable."""
        if self.host.total:
            self._unstored.append(block)

    def can_save(self, group: Group) -> bool:
        """Whether the content of all its granted tokens is in its blocks, or will be by the next
        step, and may be used again as it is."""
        return not any(
            seq.is_held() or seq.wants_prompt_logprobs() or seq.granted == seq.limit
            for seq in group.sequences
        )

    def unsaved_blocks(self, group: Group) -> tuple[int, int]:
        """Blocks of a group that the host lacks, and all its blocks with content."""
        copies = self._host_copies(group)
        return sum(copy is None for copy in copies.values()), len(copies)

    def save(self, group: Group) -> bool:
        """Pins on the host what a group has computed, copying what is not there yet. False, with
        nothing done, where the host lacks room. The device blocks are given back by `vacate`."""
        host, copies = self.host, self._host_copies(group)
        there = {copy for copy in copies.values() if copy is not None}
        room = host.room - sum(host.is_evictable(copy) for copy in there)
        if not host.total or len(copies) - len(there) > room:
            return False
        for copy in there:  # until each is pinned by the tables that it is in
            host.pin(copy)
        for seq in group.sequences:
            seq.saved = seq.granted
            for place, block in enumerate(seq.table[: self._blocks(seq)]):
                known = copies[block]
                if known is None:
                    known = copies[block] = self._swap_out(seq, place)
                else:
                    host.pin(known)
                seq.host_table.append(known)
        for copy in there:
            host.unpin(copy)
        return True

    def _swap_out(self, seq: Sequence, place: int) -> int:
        copy = self.host.take()
        assert copy is not None, "room was counted before"
        if place < seq.published:
            self.host.name(copy, seq.chain[place])
        self.moves.swap_out.append((seq.table[place], copy))
        return copy

    def _host_copies(self, group: Group) -> dict[int, int | None]:
        """For each device block with content of a group, the host block that has the same."""
        return {
            block: self.host.find(seq.chain[place]) if place < seq.published else None
            for seq in group.sequences
            for place, block in enumerate(seq.table[: self._blocks(seq)])
        }

    def write_behind(self, limit: int) -> None:
        """Copies up to `limit` published blocks to the host that it lacks, oldest first."""
        looks = LOOKS * limit
        while limit > 0 and looks > 0 and self._unstored:
            looks -= 1
            block = self._unstored.popleft()
            name = self.pool.names[block]
            if name is None or self.host.find(name) is not None:
                continue  # overwritten meanwhile, or there already
            copy = self.host.take()
            if copy is None:
                self._unstored.appendleft(block)
                return
            self.host.name(copy, name)
            self.host.unpin(copy)
            self.moves.store.append((block, copy))
            limit -= 1

    def discard(self, seq: Sequence) -> None:
        """Lets go what a swapped sequence has on the host."""
        for block in seq.host_table:
            self.host.unpin(block)
        seq.host_table, seq.saved = [], 0

    def undo(self, lost: Moves, groups: list[Group]) -> None:
        """Takes back copies to the host that never came to pass: nothing may rely on them."""
        unwritten = {target for _, target in [*lost.swap_out, *lost.store]}
        for block in unwritten:
            self.host.forget(block)
        for group in groups:
            if any(not unwritten.isdisjoint(seq.host_table) for seq in group.sequences):
                for seq in group.sequences:
                    self.discard(seq)

    def reset(self) -> None:
        """Forgets all content but what swapped sequences own."""
        self.host.reset()
        self._unstored.clear()

    def _blocks(self, seq: Sequence) -> int:
        """Blocks of the table that have content."""
        return -(-seq.granted // self.block_size)
