"""Names of block contents: a chain of hashes, so that one name stands for a whole prefix.

Device blocks, preempted sequences and other replicas all speak of content by these names. 128 bits
of blake2b: two prefixes that differ never meet, by accident or on purpose, and neither time nor
process enters, so that the same prefix has the same name everywhere.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

DIGEST_BYTES = 16


@lru_cache(maxsize=64)
def root_hash(*keys: str) -> bytes:
    """The parent of every first block: what else the content depends on besides its tokens
    (model revision, adapter, cache scope), each length-prefixed so that no two lists collide."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"octavo-root")
    for key in keys:
        raw = key.encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<I", len(raw)) + raw)
    return digest.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block whose prefix is named `parent`. Token ids fit 32 bits."""
    return _name(parent, _pack(tokens))


def extend_chain(chain: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Appends to `chain` the hashes of the full blocks of `tokens` that it lacks."""
    parent = chain[-1] if chain else root
    missing = tokens[len(chain) * block_size : len(tokens) // block_size * block_size]
    packed, size = _pack(missing), 4 * block_size
    for start in range(0, len(packed), size):
        parent = _name(parent, packed[start : start + size])
        chain.append(parent)


def _pack(tokens: Sequence[int]) -> bytes:
    """Four bytes each, the lowest first whatever the machine."""
    packed = tokens if isinstance(tokens, array) else array("I", tokens)
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def _name(parent: bytes, packed: bytes) -> bytes:
    return blake2b(parent + packed, digest_size=DIGEST_BYTES, person=b"octavo-block").digest()
