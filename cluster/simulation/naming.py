"""Names of the blocks of made-up prompts, from what they are made of instead of token by token.

As `octavo.scheduler.hashing` has it, a name stands for all tokens up to its block's end: equal
beginnings have equal names, and no others. But prompts here are long runs of equal tokens, so one
hash gives the names of all full blocks of a run, and those of what many have in common are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128

from octavo.cluster.simulation.workload import OWN, Piece
from octavo.scheduler.hashing import DIGEST_BYTES, block_hash

MOST_KEPT = 2**16  # runs


class Naming:
    """`root` is the parent of every first block."""

    def __init__(self, root: bytes, block_size: int) -> None:
        self._root = root
        self._block_size = block_size
        self._kept: dict[tuple[bytes, int], list[bytes]] = {}

    def name(self, runs: Sequence[Piece]) -> list[bytes]:
        """The names of all full blocks of such a prompt, a list of its own."""
        size = self._block_size
        names: list[bytes] = []
        parent, begun = self._root, list[int]()  # begun: tokens of a block of several runs
        for content, count in runs:
            if begun:
                some = min(size - len(begun), count)
                begun += [content] * some
                count -= some
                if len(begun) < size:
                    continue
                parent = block_hash(parent, begun)
                names.append(parent)
            full, rest = divmod(count, size)
            if full:
                names += self._run(parent, content, full)
                parent = names[-1]
            begun = [content] * rest
        return names

    def _run(self, parent: bytes, content: int, count: int) -> list[bytes]:
        """Of `count` full blocks of one content. Those of more blocks begin with the same."""
        if content >= OWN:
            return _draw(parent, content, count)
        kept = self._kept.get((parent, content), ())
        if len(kept) < count:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            kept = self._kept[parent, content] = _draw(parent, content, count)
        return list(kept[:count])


def _draw(parent: bytes, content: int, count: int) -> list[bytes]:
    end = DIGEST_BYTES * count
    raw = shake_128(parent + content.to_bytes(8, "little")).digest(end)
    return [raw[at : at + DIGEST_BYTES] for at in range(0, end, DIGEST_BYTES)]
