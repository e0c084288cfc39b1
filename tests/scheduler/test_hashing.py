from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.scheduler.hashing import DIGEST_BYTES, block_hash, extend_chain, root_hash

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def chain_of(tokens: list[int], *keys: str, block_size: int = 4) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_hash(*keys), tokens, block_size)
    return chain


@given(TOKENS, st.integers(0, 40))
def test_a_chain_is_the_same_however_it_grew(tokens: list[int], split: int) -> None:
    grown: list[bytes] = []
    extend_chain(grown, root_hash("a"), tokens[:split], 4)
    extend_chain(grown, root_hash("a"), tokens, 4)
    assert grown == chain_of(tokens, "a")
    assert len(grown) == len(tokens) // 4


@given(TOKENS, TOKENS)
def test_names_are_equal_exactly_where_prefixes_are(one: list[int], two: list[int]) -> None:
    for i, (a, b) in enumerate(zip(chain_of(one), chain_of(two), strict=False), start=1):
        assert (a == b) == (one[: i * 4] == two[: i * 4])


def test_scope_changes_every_name_of_a_chain() -> None:
    names = {
        name
        for keys in (("a",), ("b",), ("a", "b"), ("ab",), ())
        for name in chain_of(list(range(8)), *keys)
    }
    assert len(names) == 10


def test_names_are_the_same_in_every_process_and_version() -> None:
    assert len(root_hash()) == DIGEST_BYTES
    # Other replicas, and hosts' caches that outlive a process, depend on these bytes.
    assert block_hash(root_hash("s"), [1, 2, 3]).hex() == "2f5e3581318009091a96a9d0ac6b9092"
