"""Which replica holds how much of a prefix, from what the replicas tell of their caches.

Pure. One table for all replicas: a name's entry is a set of bits, one a replica, so that a request
is looked up once however many replicas there are. A second one has what is being computed, and
will be told of later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_KNOWN = 2**19  # see benchmarks/RESULTS.md for their memory
LEAP = 16


class Prefixes:
    """Names are those of `octavo.scheduler.digest`. Where there are more than `most`, it keeps only
    those that are a multiple of its stride, which doubles: what it knows gets coarser, not larger.
    Promises are at most a quarter as many."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._rest = 0  # stride - 1
        self._holders: dict[int, int] = {}  # bits, by name
        self._names: dict[str, set[int]] = {}  # by replica
        self._bits: dict[str, int] = {}
        self._free: list[int] = []
        self._coming: dict[int, int] = {}  # bits, by name
        self._kept = 0

    def __len__(self) -> int:
        """Names that it keeps, counted once for each replica that holds them."""
        return self._kept

    def __contains__(self, replica: str) -> bool:
        """Whether it is known what this replica holds."""
        return replica in self._bits

    @property
    def stride(self) -> int:
        return self._rest + 1

    def replace(self, replica: str, names: Iterable[int], stride: int = 1) -> None:
        """All that a replica holds, of which it tells the multiples of `stride`."""
        self.drop(replica)
        self._bits[replica] = self._free.pop() if self._free else 1 << len(self._bits)
        self._names[replica] = set()
        if stride > self.stride:
            self._thin(stride)
        self.add(replica, names)

    def add(self, replica: str, names: Iterable[int]) -> None:
        """To what a known replica holds."""
        bit, mine = self._bits[replica], self._names[replica]
        holders, rest, before = self._holders, self._rest, len(mine)
        for name in names:
            if not name & rest:
                mine.add(name)
                held = holders.get(name)
                holders[name] = bit if held is None else held | bit
        self._kept += len(mine) - before
        while self._kept > self._most:
            self._thin(2 * self.stride)

    def remove(self, replica: str, names: Iterable[int]) -> None:
        """From what a known replica holds."""
        mine, bit = self._names[replica], self._bits[replica]
        for name in names:
            if name in mine:
                mine.remove(name)
                self._kept -= 1
                self._clear(name, bit)

    def drop(self, replica: str) -> None:
        """Nothing is known of a replica any more."""
        bit = self._bits.pop(replica, None)
        if bit is not None:
            mine = self._names.pop(replica)
            self._kept -= len(mine)
            for name in mine:
                self._clear(name, bit)
            for name in list(self._coming):
                self._unpromise(name, bit)
            self._free.append(bit)

    def promise(self, replica: str, names: Iterable[int]) -> list[int]:
        """A request that will leave these names there is on its way. Returns those of which this is
        news, to be given to `release`."""
        bit = self._bits.get(replica, 0)
        coming, rest = self._coming, self._rest
        news: list[int] = []
        for name in names:
            if not bit or len(coming) >= self._most // 4:
                break
            if not name & rest and not coming.get(name, 0) & bit:
                coming[name] = coming.get(name, 0) | bit
                news.append(name)
        return news

    def release(self, replica: str, names: Iterable[int]) -> None:
        """Takes back a promise."""
        bit = self._bits.get(replica, 0)
        for name in names:
            self._unpromise(name, bit)

    def bit(self, replica: str) -> int:
        """That stands for this known replica in sets of them, until `replace` or `drop`."""
        return self._bits[replica]

    def match(self, names: Sequence[int], among: int) -> list[tuple[int, int]]:
        """How many blocks from the start each of the replicas in the set `among` holds, as far as
        can be told: numbers of blocks, in order, each with the set of those that hold just so many;
        those that hold none are left out. `names` are those of a request's blocks in order. One in
        `LEAP` is looked at while all hold it: caches forget a prefix from its end, so whoever holds
        a block holds those before it."""
        left, holders, coming, rest = among, self._holders, self._coming, self._rest
        found: list[tuple[int, int]] = []
        count = at = 0
        while left and at < len(names):
            end = at + LEAP
            if end <= len(names) and not rest:
                last = names[end - 1]
                if (holders.get(last, 0) | coming.get(last, 0)) & left == left:
                    at = count = end
                    continue
            for depth, name in enumerate(names[at:end], at + 1):
                if name & rest:
                    continue
                held = (holders.get(name, 0) | coming.get(name, 0)) & left
                if held != left:
                    if count:
                        found.append((count, left & ~held))
                    left = held
                    if not left:
                        break
                count = depth
            at = end
        if count and left:
            found.append((count, left))
        return found

    def _clear(self, name: int, bit: int) -> None:
        left = self._holders[name] & ~bit
        if left:
            self._holders[name] = left
        else:
            del self._holders[name]

    def _unpromise(self, name: int, bit: int) -> None:
        bits = self._coming.get(name, 0)
        if bits & ~bit:
            self._coming[name] = bits & ~bit
        elif bits:
            del self._coming[name]

    def _thin(self, stride: int) -> None:
        self._rest = rest = stride - 1
        self._holders = {name: bits for name, bits in self._holders.items() if not name & rest}
        for replica, names in self._names.items():
            self._names[replica] = {name for name in names if not name & rest}
        self._kept = sum(map(len, self._names.values()))
