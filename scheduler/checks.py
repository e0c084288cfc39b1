"""The invariants of memory and of the queues, asserted over everything; for tests."""

from __future__ import annotations

from collections import Counter

from octavo.scheduler.group import Group
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence


def check(scheduler: Scheduler) -> None:
    """Raises `AssertionError` where one does not hold. O(everything)."""
    roster, cache = scheduler.roster, scheduler.cache
    cache.pool.check()
    cache.host.check()
    rows = [seq.row for group in roster.running for seq in group.sequences if seq.row is not None]
    assert sorted([*rows, *roster.free_rows]) == list(range(scheduler.config.max_num_seqs))
    assert len(roster.running) + len(roster.waiting) == len(roster.live)
    pins = Counter[int]()
    for group in roster.live.values():
        assert group.finish is None and group.sequences
        assert len(group.sequences) <= group.width
        for seq in group.sequences:
            assert seq.group is group and seq.finish is None
            pins.update(seq.host_table)
    assert [pins[block] for block in range(cache.host.total)] == cache.host.pins.tolist()
    for group in roster.waiting:
        assert not group.running
        for seq in group.sequences:
            assert seq.row is None and not seq.table and not seq.reserved
            assert len(seq.host_table) == cache.blocks_for(seq.saved)
    counts = [0] * cache.pool.num_blocks
    for group in roster.running:
        assert group.running
        for seq in group.sequences:
            _check_table(scheduler, group, seq)
            for block in [*seq.table, *seq.reserved]:
                counts[block] += 1
    assert counts == cache.pool.references.tolist()
    for owner in cache.claims.values():
        assert owner.table, "a block is awaited that nobody computes"


def _check_table(scheduler: Scheduler, group: Group, seq: Sequence) -> None:
    block_size = scheduler.cache.block_size
    assert seq.row is not None and not seq.host_table
    blocks = [*seq.table, *seq.reserved]
    assert len(set(blocks)) == len(blocks) and 0 not in blocks
    assert seq.published * block_size <= seq.computed <= seq.granted
    held = len(seq.table) * block_size
    assert seq.granted <= held < max(seq.granted, len(seq.tokens)) + block_size
