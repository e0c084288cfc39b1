from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.scheduler.blocks import BlockPool

NUM_BLOCKS = 9


class PoolAgainstModel(RuleBasedStateMachine):
    """The linked list against plain Python lists that say the same thing slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.free = list(range(1, NUM_BLOCKS))  # front first
        self.tables: list[list[int]] = []
        self.names: dict[int, bytes] = {}

    def count(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables)

    @precondition(lambda self: self.free)
    @rule(size=st.integers(1, 3))
    def allocate(self, size: int) -> None:
        table = []
        for _ in range(min(size, len(self.free))):
            block = self.free.pop(0)
            self.names.pop(block, None)
            assert self.pool.take() == block
            table.append(block)
        self.tables.append(table)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.names)))
        assert self.pool.find(self.names[block]) == block
        self.pool.touch(block)
        if block in self.free:
            self.free.remove(block)
        self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(reversed(table))
        for block in reversed(table):
            if self.count(block) == 0:
                self.free.insert(len(self.free) if block in self.names else 0, block)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), name=st.binary(min_size=1, max_size=1))
    def publish(self, data: st.DataObject, name: bytes) -> None:
        held = sorted({block for table in self.tables for block in table} - set(self.names))
        if not held:
            return
        block = data.draw(st.sampled_from(held))
        self.pool.publish(block, name)
        if name not in self.names.values():
            self.names[block] = name

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.names.clear()

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.free == len(self.free)
        assert self.pool.used + self.pool.free + 1 == NUM_BLOCKS
        assert self.pool.cached == sum(block in self.names for block in self.free)
        for block in range(1, NUM_BLOCKS):
            assert self.pool.references[block] == self.count(block)
        for block, name in self.names.items():
            assert self.pool.find(name) == block


PoolAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPoolAgainstModel = PoolAgainstModel.TestCase


def test_tails_are_taken_before_prefixes() -> None:
    pool = BlockPool(4)
    table = [pool.take() for _ in range(3)]
    for block in table:
        pool.publish(block, bytes([block]))
    pool.release(reversed(table))
    assert [pool.take() for _ in range(3)] == table[::-1]


def test_blocks_with_nothing_to_find_are_taken_first() -> None:
    pool = BlockPool(4)
    named, plain, other = (pool.take() for _ in range(3))
    pool.publish(named, b"prefix")
    pool.release([named])
    pool.release([plain, other])
    assert {pool.take(), pool.take()} == {plain, other}
    assert pool.find(b"prefix") == named
    assert pool.take() == named and pool.find(b"prefix") is None


def test_misuse_is_caught() -> None:
    pool = BlockPool(2)
    block = pool.take()
    with pytest.raises(AssertionError, match="1 blocks from a pool that has 0"):
        pool.take()
    pool.release([block])
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block])
