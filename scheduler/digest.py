"""What a replica tells others of its cache: short names of the blocks that can be found in it.

A router needs to know where a prefix is, not where a block is. So a name is cut to its first 64
bits, and where there is very much in a cache only those names are told that are a multiple of the
`stride`: names are as good as random, so that is an even sample, and whoever has a request's names
knows which of them would have been told. What a replica tells is bounded whatever its memory.

Told are changes; the whole only to those who are new or have missed something.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import msgspec

from octavo.scheduler.kv_cache import KvCache

MOST_NAMES = 2**16
NAME_BYTES = 8


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of either tier. `scope` is what the engine adds to the root of every chain, see
    `hashing.root_hash`. Digest number n builds on number n - 1, unless it is `whole`. Names lie
    side by side, `NAME_BYTES` each."""

    number: int
    whole: bool
    scope: str
    block_size: int
    stride: int
    added: bytes
    removed: bytes = b""


def short_name(name: bytes) -> int:
    """Of a block's whole name."""
    return int.from_bytes(name[:NAME_BYTES], "little")


def short_names(names: Sequence[bytes]) -> list[int]:
    """Of many whole names."""
    return list(struct.unpack(f"<{2 * len(names)}Q", b"".join(names))[::2])


def unpack_names(raw: bytes) -> tuple[int, ...]:
    """Raises `ValueError` where these are no names."""
    if len(raw) % NAME_BYTES:
        raise ValueError(f"{len(raw)} bytes are not names of {NAME_BYTES} bytes each")
    return struct.unpack(f"<{len(raw) // NAME_BYTES}Q", raw)


class Publisher:
    """Of one cache, which from now on notes which names come and go. Of more than `most` names it
    tells every second, fourth, … one, and all again once they are a quarter as many."""

    def __init__(self, cache: KvCache, scope: str, most: int = MOST_NAMES) -> None:
        self._pools = cache.pool, cache.host
        self._changed: set[bytes] = set()
        cache.pool.changed = cache.host.changed = self._changed
        self._scope = scope
        self._block_size = cache.block_size
        self._most = most
        self._stride = 1
        self._number = 0

    def changes(self) -> Digest | None:
        """Since the last call; None where there are none. Where names are told more or less
        sparingly from now on, it is a whole digest."""
        if not self._changed:
            return None
        self._number += 1
        device, host = self._pools
        if self._restrain(len(device.findable) + len(host.findable)):
            self._changed.clear()
            return self.whole()
        added: list[bytes] = []
        removed: list[bytes] = []
        for name in self._changed:
            there = device.find(name) is not None or host.find(name) is not None
            (added if there else removed).append(name)
        self._changed.clear()
        return self._digest(False, added, removed)

    def whole(self) -> Digest:
        """All that can be found, as of the last `changes`."""
        device, host = self._pools
        return self._digest(True, {*device.findable, *host.findable}, ())

    def _restrain(self, names: int) -> bool:
        """Whether the stride had to change for so many names."""
        before = self._stride
        while names > self._stride * self._most:
            self._stride *= 2
        while self._stride > 1 and 4 * names <= self._stride * self._most:
            self._stride //= 2
        return self._stride != before

    def _digest(self, whole: bool, added: Iterable[bytes], removed: Iterable[bytes]) -> Digest:
        return Digest(
            self._number,
            whole,
            self._scope,
            self._block_size,
            self._stride,
            self._pack(added),
            self._pack(removed),
        )

    def _pack(self, names: Iterable[bytes]) -> bytes:
        rest = self._stride - 1
        return b"".join(
            name[:NAME_BYTES] for name in names if not rest or not short_name(name) & rest
        )
