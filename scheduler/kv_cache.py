"""The KV cache manager: which blocks a sequence holds, shares, fills and gives back.

Works on sequences' tables and on the pool; knows nothing of budgets, queues or plans. One mechanism
serves first admissions and resumptions: walk the chain of hashes, share what is found, allocate the
rest, start computing at the first miss.
"""

from __future__ import annotations

from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.config import Capacity
from octavo.scheduler.sequence import Sequence


class KvCache:
    def __init__(self, capacity: Capacity) -> None:
        self.pool = BlockPool(capacity.num_blocks)
        self.block_size = capacity.block_size
        # Blocks that a running sequence is about to fill, by name: others wait for them instead
        # of computing the same content twice.
        self._computing: dict[bytes, Sequence] = {}

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find_prefix(self, seq: Sequence) -> list[int] | None:
        """Blocks that hold the sequence's longest known prefix, or None where the next block is
        being computed by another. The last token is always left to compute."""
        if seq.waits_for is not None:
            if seq.waits_for in self._computing:
                return None
            seq.waits_for = None
        if seq.wants_prompt_logprobs():
            return []
        hits: list[int] = []
        chain = seq.hashes(self.block_size)
        for name in chain[: (len(seq.tokens) - 1) // self.block_size]:
            block = self.pool.find(name)
            if block is None:
                if name in self._computing:
                    seq.waits_for = name
                    return None
                break
            hits.append(block)
        return hits

    def fits(self, hits: list[int], tokens: int, reserve: int) -> bool:
        """Whether a table of `tokens` tokens that starts with `hits` can be had with `reserve`
        blocks left. Hits in the free list are consumed like any other block."""
        references = self.pool.references
        missing = self.blocks_for(tokens) - len(hits)
        revived = sum(references[block] == 0 for block in hits)
        return self.pool.free - missing - revived >= reserve

    def seat(self, seq: Sequence, hits: list[int]) -> None:
        """Gives a sequence the blocks of all its known tokens at once: nobody waits half loaded
        while holding memory that another half-loaded one needs."""
        for block in hits:
            self.pool.touch(block)
        missing = self.blocks_for(len(seq.tokens)) - len(hits)
        seq.table = hits + [self.pool.take() for _ in range(missing)]
        seq.granted = seq.computed = len(hits) * self.block_size
        seq.published = len(hits)
        for name in seq.hashes(self.block_size)[len(hits) :]:
            self._computing.setdefault(name, seq)

    def publish(self, seq: Sequence) -> None:
        """Makes those blocks findable that confirmed steps have filled."""
        chain = seq.hashes(self.block_size)
        full = seq.computed // self.block_size
        for place in range(seq.published, full):
            self.pool.publish(seq.table[place], chain[place])
            self._release_claim(seq, chain[place])
        seq.published = full

    def vacate(self, seq: Sequence) -> None:
        """Takes all blocks from a sequence; what it published stays findable while room lasts."""
        self.pool.release(reversed(seq.table))
        for name in seq.chain[seq.published :]:
            self._release_claim(seq, name)
        seq.table = []
        seq.granted = seq.computed = seq.published = 0

    def trim(self, seq: Sequence) -> None:
        """Gives back blocks beyond the known tokens, which a forgotten step had asked for."""
        needed = self.blocks_for(len(seq.tokens))
        self.pool.release(reversed(seq.table[needed:]))
        del seq.table[needed:]

    def gives_back(self, seq: Sequence) -> bool:
        """Whether taking this sequence's blocks would free any: shared ones stay."""
        references = self.pool.references
        return any(references[block] == 1 for block in seq.table)

    def check(self, running: list[Sequence]) -> None:
        """Asserts the memory invariants against the sequences that hold blocks; for tests."""
        self.pool.check()
        counts = [0] * self.pool.num_blocks
        for seq in running:
            assert len(set(seq.table)) == len(seq.table) and 0 not in seq.table
            for block in seq.table:
                counts[block] += 1
            assert seq.published * self.block_size <= seq.computed <= seq.granted
            held = len(seq.table) * self.block_size
            assert seq.granted <= held < max(seq.granted, len(seq.tokens)) + self.block_size
        assert counts == self.pool.references
        for owner in self._computing.values():
            assert owner.table, "a block is awaited that nobody computes"

    def _release_claim(self, seq: Sequence, name: bytes) -> None:
        if self._computing.get(name) is seq:
            del self._computing[name]
