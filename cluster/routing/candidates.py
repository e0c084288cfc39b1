"""The replicas that a request may be given to, in the order of what stands before it on each.

Pure. A decision looks at the first of them, or the first of a set of them, however many there are;
what changes between two decisions is put in its place before the next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

FEW = 32  # of a set of so many, each is looked at


class Candidates:
    """Replica number n is `names[n]`, with `loads[n]` before a request and, where it is known what
    it holds, the bit `bits[n]` in sets of replicas, else 0. Of equal ones the first counts."""

    def __init__(self, names: Sequence[str], loads: Sequence[float], bits: Sequence[int]) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}
        self._loads = list(loads)
        self._bits = bits
        self._of_bit = {bit.bit_length() - 1: place for place, bit in enumerate(bits) if bit}
        self._order = sorted(zip(loads, range(len(loads)), strict=True))

    def change(self, loads: dict[int, float]) -> None:
        """What stands before a request now, by number."""
        known, order = self._loads, self._order
        if len(loads) * 8 > len(order):
            for place, load in loads.items():
                known[place] = load
            self._order = sorted(zip(known, range(len(known)), strict=True))
            return
        for place, load in loads.items():
            if load != known[place]:
                del order[bisect_left(order, (known[place], place))]
                known[place] = load
                insort(order, (load, place))

    def least(self) -> tuple[float, int]:
        """The least load, and whose it is."""
        return self._order[0]

    def least_among(self, those: int) -> tuple[float, int]:
        """The same of a set of replicas, which is not empty."""
        if those.bit_count() > FEW:
            return next(each for each in self._order if self._bits[each[1]] & those)
        loads, found = self._loads, list[tuple[float, int]]()
        while those:
            highest = those.bit_length() - 1
            place = self._of_bit[highest]
            found.append((loads[place], place))
            those ^= 1 << highest
        return min(found)
