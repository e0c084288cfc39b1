"""The device pool: which blocks are held, which are free, and what content can still be found.

Block 0 is the null block: never handed out, and here the head of the free list's ring. All
operations are O(1). The pool knows no sequences and no tokens; content has a name (`hashing`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, KeysView

from octavo.scheduler.ages import SAMPLE, Ages

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 .. num_blocks - 1 with reference counts and an intrusive doubly linked free list.
    `names` has for each block the name under which its content is found, or None.

    The list is ordered by usefulness: blocks with nothing to find first, then findable ones, least
    recently freed first. A findable block stays so until it is taken (vLLM's lazy eviction).

    Numbers lie in arrays: 4 bytes each instead of an object, and nothing for the garbage collector
    to walk through, however large the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "a pool needs a block besides the null block"
        self.num_blocks = num_blocks
        self.free = num_blocks - 1
        self.cached = 0  # of the free ones, those whose content can still be found
        self.shared = 0  # of the used ones, those with more than one reference
        self.references = array("I", [0]) * num_blocks
        self._next = array("I", range(1, num_blocks))
        self._next.append(NULL_BLOCK)
        self._previous = array("I", [num_blocks - 1])
        self._previous.extend(range(num_blocks - 1))
        self.names: list[bytes | None] = [None] * num_blocks
        self.named = bytearray(num_blocks)  # 1 where there is a name: all of it at a glance
        self._index: dict[bytes, int] = {}
        self.changed: set[bytes] | None = None  # names that came or went, where somebody asks
        self.ages = Ages(num_blocks)

    @property
    def findable(self) -> KeysView[bytes]:
        """Names of all content that is there."""
        return self._index.keys()

    @property
    def used(self) -> int:
        return self.num_blocks - 1 - self.free

    def find(self, name: bytes) -> int | None:
        """The block that holds the content of this name."""
        return self._index.get(name)

    def find_first(self, names: Iterable[bytes]) -> list[int]:
        """The same of several, up to the first that is not found."""
        found: list[int] = []
        look_up = self._index.get
        for name in names:
            block = look_up(name)
            if block is None:
                break
            found.append(block)
        return found

    def take(self) -> int:
        """A block to write into, with one reference. Whatever it held can no longer be found."""
        (block,) = self.take_many(1)
        return block

    def take_many(self, count: int) -> list[int]:
        """So many at once: they lie side by side at the head of the list."""
        assert count <= self.free, f"{count} blocks from a pool that has {self.free}"
        after, names, references = self._next, self.names, self.references
        ages, began = self.ages, self.ages.taken
        now = ages.now
        taken, named, block = [], 0, NULL_BLOCK
        for _ in range(count):
            block = after[block]
            taken.append(block)
            references[block] = 1
            looked_at = block % SAMPLE == 1
            if names[block] is not None:
                if looked_at:
                    ages.evict(block)
                self._forget(block)
                named += 1
            if looked_at:
                began[block] = now
        if taken:
            rest = after[block]
            after[NULL_BLOCK], self._previous[rest] = rest, NULL_BLOCK
        self.free -= count
        self.cached -= named
        return taken

    def touch(self, block: int) -> None:
        """One more reference to a found block; takes it out of the free list if it was there."""
        self.touch_all((block,))

    def touch_all(self, blocks: Iterable[int]) -> None:
        """The same of several."""
        references = self.references
        for block in blocks:
            count = references[block]
            references[block] = count + 1
            if count == 0:
                self._unlink(block)
                if block % SAMPLE == 1:
                    self.ages.reuse(block)
            elif count == 1:
                self.shared += 1

    def release(self, table: Iterable[int]) -> None:
        """Drops one reference to each block of a table given tail first, so that of one sequence
        the tail is taken before its prefix."""
        references, names = self.references, self.names
        nexts, previous = self._next, self._previous
        left, now = self.ages.used, self.ages.now
        freed = named = 0
        for block in table:
            count = references[block]
            assert count > 0, f"block {block} is released twice"
            references[block] = count - 1
            if count > 1:
                self.shared -= count == 2
                continue
            if block % SAMPLE == 1:
                left[block] = now
            freed += 1
            before = NULL_BLOCK
            if names[block] is not None:
                named += 1
                before = previous[NULL_BLOCK]
            after = nexts[before]
            nexts[before] = previous[after] = block
            previous[block], nexts[block] = before, after
        self.free += freed
        self.cached += named

    def publish(self, block: int, name: bytes) -> bool:
        """Makes a full, written block findable; True if it was not. Where the same content is
        indexed already, the second block is left unnamed: tables are not changed for it."""
        assert self.references[block] > 0
        if name in self._index:
            return False
        assert self.names[block] is None
        self._index[name] = block
        self.names[block] = name
        self.named[block] = 1
        if self.changed is not None:
            self.changed.add(name)
        return True

    def reset(self) -> None:
        """Forgets all content: no later request finds what was computed before."""
        for block in list(self._index.values()):
            self._forget(block)
        self.cached = 0

    def check(self) -> None:
        """Asserts every structural invariant. O(num_blocks); for tests."""
        free, block = [], self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            assert self._previous[self._next[block]] == block
            free.append(block)
            block = self._next[block]
        assert len(free) == len(set(free)) == self.free
        held = {b for b in range(1, self.num_blocks) if self.references[b] > 0}
        assert held.isdisjoint(free) and len(held) + len(free) == self.num_blocks - 1
        assert self.shared == sum(self.references[block] > 1 for block in held)
        assert self.references[NULL_BLOCK] == 0 and self.names[NULL_BLOCK] is None
        assert all(self.names[block] == name for name, block in self._index.items())
        assert sum(h is not None for h in self.names) == len(self._index)
        assert list(self.named) == [name is not None for name in self.names]
        assert self.cached == sum(self.names[block] is not None for block in free)

    def _forget(self, block: int) -> None:
        name = self.names[block]
        assert name is not None
        del self._index[name]
        self.names[block] = None
        self.named[block] = 0
        if self.changed is not None:
            self.changed.add(name)

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self.free -= 1
        self.cached -= self.names[block] is not None
