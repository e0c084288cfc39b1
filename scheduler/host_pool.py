"""The host pool: blocks in the memory behind the device, pinned by sequences or kept as a cache.

Works like the device pool with two differences: a kept block is given up least recently used
first, and one that is let go rests until the next step, because the step under way may read it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import KeysView


class HostPool:
    """Blocks 0 .. total - 1. Each is free, pinned (by swapped sequences), kept (named, evictable),
    or resting until `settle`. `names` has for each block the name of its content, or None; they
    outlive pins, so a pinned block can be found too."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.pins = array("I", [0]) * total
        self.used = 0  # pinned
        self._free: list[int] = []  # of those that were used before
        self._fresh = 0  # this block and all behind it were never used
        self._kept: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._resting: dict[int, None] = {}
        self.names: list[bytes | None] = [None] * total
        self.named = bytearray(total)  # 1 where there is a name: all of it at a glance
        self._index: dict[bytes, int] = {}
        self.changed: set[bytes] | None = None  # names that came or went, where somebody asks

    @property
    def findable(self) -> KeysView[bytes]:
        """Names of all content that is there."""
        return self._index.keys()

    @property
    def cached(self) -> int:
        """Blocks that nobody pins and whose content can be found."""
        return len(self._kept) + sum(self.names[block] is not None for block in self._resting)

    @property
    def room(self) -> int:
        """Blocks that `take` could give now."""
        return len(self._free) + self.total - self._fresh + len(self._kept)

    def find(self, name: bytes) -> int | None:
        """The block that holds the content of this name."""
        return self._index.get(name)

    def is_evictable(self, block: int) -> bool:
        """Whether pinning this block would take from `room`."""
        return block in self._kept

    def take(self) -> int | None:
        """A block to copy into, pinned once and without a name; None where all are in use."""
        if self._free:
            block = self._free.pop()
        elif self._fresh < self.total:
            block = self._fresh
            self._fresh += 1
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            self.forget(block)
        else:
            return None
        self.pins[block] = 1
        self.used += 1
        return block

    def name(self, block: int, name: bytes) -> None:
        """Makes a pinned block findable, unless the same content is there already."""
        assert self.pins[block] > 0 and self.names[block] is None
        if name not in self._index:
            self._index[name] = block
            self.names[block] = name
            self.named[block] = 1
            if self.changed is not None:
                self.changed.add(name)

    def pin(self, block: int) -> None:
        if self.pins[block] == 0:
            self._kept.pop(block, None)
            self._resting.pop(block, None)
            self.used += 1
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        """Without pins a block rests; then it is kept if it has a name, else free."""
        assert self.pins[block] > 0, f"host block {block} is unpinned twice"
        self.pins[block] -= 1
        if self.pins[block] == 0:
            self.used -= 1
            self._resting[block] = None

    def settle(self) -> None:
        """A step has gone out since: what it read may be overwritten by the next."""
        for block in self._resting:
            if self.names[block] is None:
                self._free.append(block)
            else:
                self._kept[block] = None
        self._resting.clear()

    def forget(self, block: int) -> None:
        """Takes a block's name away, so that its content cannot be found."""
        name = self.names[block]
        if name is not None:
            del self._index[name]
            self.names[block] = None
            self.named[block] = 0
            if self.changed is not None:
                self.changed.add(name)
            if block in self._kept:
                del self._kept[block]
                self._free.append(block)

    def reset(self) -> None:
        """Forgets all content but what pins hold for their owners."""
        for block in list(self._index.values()):
            self.forget(block)

    def check(self) -> None:
        """Asserts every structural invariant. O(total); for tests."""
        free = [*self._free, *range(self._fresh, self.total)]
        groups = [set(free), set(self._kept), set(self._resting)]
        pinned = {block for block in range(self.total) if self.pins[block] > 0}
        assert len(pinned) == self.used
        assert sum(map(len, groups)) + len(pinned) == self.total
        assert set().union(pinned, *groups) == set(range(self.total))
        assert all(self.names[block] is None for block in free)
        assert all(self.names[block] is not None for block in self._kept)
        assert all(self.names[block] == name for name, block in self._index.items())
        assert sum(name is not None for name in self.names) == len(self._index)
        assert list(self.named) == [name is not None for name in self.names]
