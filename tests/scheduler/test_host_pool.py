from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.scheduler.host_pool import HostPool

TOTAL = 6


class HostPoolAgainstModel(RuleBasedStateMachine):
    """The pool against plain Python lists and dictionaries that say the same thing slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = HostPool(TOTAL)
        self.free = list(range(TOTAL))
        self.kept: list[int] = []  # oldest first
        self.resting: list[int] = []
        self.pins: dict[int, int] = {}
        self.names: dict[int, bytes] = {}

    @rule()
    def take(self) -> None:
        block = self.pool.take()
        if not self.free and not self.kept:
            assert block is None
            return
        assert block is not None
        if self.free:
            self.free.remove(block)
        else:
            assert self.kept.pop(0) == block
            del self.names[block]
        self.pins[block] = 1

    @precondition(lambda self: any(block not in self.names for block in self.pins))
    @rule(data=st.data(), name=st.binary(min_size=1, max_size=1))
    def name(self, data: st.DataObject, name: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.pins) - set(self.names))))
        self.pool.name(block, name)
        if name not in self.names.values():
            self.names[block] = name

    @precondition(lambda self: bool(self.pins or self.names))
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted({*self.pins, *self.names})))
        assert self.pool.is_evictable(block) == (block in self.kept)
        self.pool.pin(block)
        for blocks in (self.kept, self.resting):
            if block in blocks:
                blocks.remove(block)
        self.pins[block] = self.pins.get(block, 0) + 1

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.pins)))
        self.pool.unpin(block)
        self.pins[block] -= 1
        if self.pins[block] == 0:
            del self.pins[block]
            self.resting.append(block)

    @rule()
    def settle(self) -> None:
        self.pool.settle()
        self.kept += [block for block in self.resting if block in self.names]
        self.free += [block for block in self.resting if block not in self.names]
        self.resting = []

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self._forget(data.draw(st.sampled_from(sorted(self.names))))

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        for block in sorted(self.names):
            self._lose_name(block)

    def _forget(self, block: int) -> None:
        self.pool.forget(block)
        self._lose_name(block)

    def _lose_name(self, block: int) -> None:
        del self.names[block]
        if block in self.kept:
            self.kept.remove(block)
            self.free.append(block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.used == len(self.pins)
        assert self.pool.room == len(self.free) + len(self.kept)
        loose = [*self.kept, *self.resting]
        assert self.pool.cached == sum(block in self.names for block in loose)
        assert self.pool.pins.tolist() == [self.pins.get(block, 0) for block in range(TOTAL)]
        assert self.pool.names == [self.names.get(block) for block in range(TOTAL)]
        for block, name in self.names.items():
            assert self.pool.find(name) == block


HostPoolAgainstModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestHostPoolAgainstModel = HostPoolAgainstModel.TestCase


def filled(names: list[bytes]) -> HostPool:
    """A pool with no room but what these named blocks, let go in order, give."""
    pool = HostPool(len(names))
    for name in names:
        block = pool.take()
        assert block is not None
        pool.name(block, name)
        pool.unpin(block)
    pool.settle()
    return pool


def test_the_least_recently_used_is_given_up_first() -> None:
    pool = filled([b"a", b"b", b"c"])
    first = pool.find(b"a")
    assert first is not None
    pool.pin(first)
    pool.unpin(first)
    pool.settle()
    assert pool.take() is not None
    assert pool.find(b"b") is None and pool.find(b"a") == first
    assert pool.take() is not None
    assert pool.find(b"c") is None and pool.find(b"a") == first


def test_what_was_let_go_is_not_overwritten_before_the_next_step() -> None:
    pool = HostPool(1)
    block = pool.take()
    assert block == 0
    pool.unpin(block)
    assert pool.room == 0 and pool.take() is None
    pool.settle()
    assert pool.take() == block


def test_a_pinned_block_is_never_given_up_but_can_be_found() -> None:
    pool = filled([b"a"])
    block = pool.find(b"a")
    assert block is not None
    pool.pin(block)
    pool.settle()
    assert pool.take() is None and pool.find(b"a") == block and pool.cached == 0


def test_forgetting_a_pinned_block_leaves_it_to_its_owner() -> None:
    pool = filled([b"a", b"b"])
    block = pool.find(b"a")
    assert block is not None
    pool.pin(block)
    pool.reset()
    assert pool.find(b"a") is None and pool.pins[block] == 1
    assert pool.take() != block and pool.take() is None
    pool.unpin(block)
    pool.settle()
    assert pool.cached == 0 and pool.take() == block


def test_the_same_content_is_named_once() -> None:
    pool = HostPool(2)
    one, two = pool.take(), pool.take()
    assert one is not None and two is not None
    pool.name(one, b"a")
    pool.name(two, b"a")
    assert pool.find(b"a") == one and pool.names[two] is None


def test_letting_go_twice_is_caught() -> None:
    pool = HostPool(1)
    block = pool.take()
    assert block is not None
    pool.unpin(block)
    with pytest.raises(AssertionError, match="unpinned twice"):
        pool.unpin(block)


def test_a_host_without_blocks_has_no_room() -> None:
    pool = HostPool(0)
    assert pool.room == 0 and pool.take() is None and pool.find(b"a") is None
