"""Who holds how much of a prefix: against sets, in any history of digests."""

from __future__ import annotations

import random

import pytest

from octavo.cluster.routing.prefixes import Prefixes


def match(prefixes, names, replicas):
    """Blocks that each of these replicas holds."""
    among = sum(map(prefixes.bit, replicas))
    found = prefixes.match(names, among)
    assert [count for count, _ in found] == sorted({count for count, _ in found})
    return {name: count for count, bits in found for name in replicas if prefixes.bit(name) & bits}


def test_the_longest_prefix_that_each_holds():
    prefixes = Prefixes()
    prefixes.replace("a", [1, 2, 3, 4])
    prefixes.replace("b", [1, 2])
    prefixes.replace("c", [2, 3, 4])  # without the first, the rest is no use
    assert match(prefixes, [1, 2, 3, 9], "abc") == {"a": 3, "b": 2}
    assert match(prefixes, [1, 2, 3, 9], "bc") == {"b": 2}
    assert match(prefixes, [], "a") == {} and match(prefixes, [1], "") == {}


def test_what_is_told_replaces_adds_and_removes():
    prefixes = Prefixes()
    prefixes.replace("a", [1, 2])
    prefixes.add("a", [3])
    prefixes.remove("a", [2, 7])
    assert match(prefixes, [1, 2, 3], "a") == {"a": 1} and len(prefixes) == 2
    prefixes.replace("a", [5])
    assert match(prefixes, [1], "a") == {} and match(prefixes, [5], "a") == {"a": 1}
    prefixes.drop("a")
    assert "a" not in prefixes and len(prefixes) == 0


def test_a_place_that_was_freed_is_taken_by_another_with_nothing_of_the_first():
    prefixes = Prefixes()
    prefixes.replace("a", [1])
    prefixes.replace("b", [2])
    prefixes.promise("a", [3])
    prefixes.drop("a")
    prefixes.replace("c", [])
    assert match(prefixes, [1], "bc") == match(prefixes, [3], "bc") == {}
    assert match(prefixes, [2], "bc") == {"b": 1}


def test_a_promise_counts_until_it_is_taken_back():
    prefixes = Prefixes()
    prefixes.replace("a", [1])
    prefixes.replace("b", [])
    assert prefixes.promise("a", [2, 3]) == [2, 3]
    assert prefixes.promise("a", [3, 4]) == [4], "the rest is promised already"
    assert prefixes.promise("b", [3]) == [3] and prefixes.promise("unknown", [3]) == []
    assert match(prefixes, [1, 2, 3, 4], "ab") == {"a": 4}
    prefixes.release("a", [2, 3])
    assert match(prefixes, [1, 2, 3, 4], "ab") == {"a": 1}
    assert match(prefixes, [3], "ab") == {"b": 1}


def test_it_keeps_no_more_than_so_many_names_and_as_many_promises():
    prefixes = Prefixes(most=100)
    source = random.Random(1)
    told = [source.getrandbits(64) for _ in range(1000)]
    prefixes.replace("a", told[:500])
    prefixes.replace("b", told[500:])
    assert 25 < len(prefixes) <= 100 and prefixes.stride >= 8
    kept = [name for name in told if not name % prefixes.stride]
    assert len(kept) == len(prefixes)
    assert match(prefixes, told[:500], "ab")["a"] > 450, "but for the last few, which nobody told"
    assert len(prefixes.promise("a", [source.getrandbits(64) * 64 for _ in range(200)])) == 25


def test_a_replica_that_tells_every_fourth_makes_all_be_known_so():
    prefixes = Prefixes()
    prefixes.replace("a", [4, 5, 6, 8])
    prefixes.replace("b", [4, 8], stride=4)
    assert match(prefixes, [5, 4, 6, 8, 7], "ab") == {"a": 4, "b": 4}


@pytest.mark.parametrize("seed", range(10))
def test_any_history_against_sets(seed):
    source = random.Random(seed)
    prefixes, truth = Prefixes(), {}
    for _ in range(200):
        replica = source.choice("abcdef")
        some = [source.randrange(40) for _ in range(source.randrange(10))]
        kind = source.randrange(5) if replica in truth else 0
        if kind == 0:
            prefixes.replace(replica, some)
            truth[replica] = set(some)
        elif kind == 1:
            prefixes.drop(replica)
            del truth[replica]
        elif kind == 2:
            prefixes.remove(replica, some)
            truth[replica] -= set(some)
        else:
            prefixes.add(replica, some)
            truth[replica] |= set(some)
        asked = [source.randrange(40) for _ in range(6)]
        expected = {}
        for name, held in truth.items():
            missing = [place for place, each in enumerate(asked) if each not in held]
            if count := min(missing, default=len(asked)):
                expected[name] = count
        assert match(prefixes, asked, truth) == expected
        assert len(prefixes) == sum(map(len, truth.values()))


@pytest.mark.parametrize("seed", range(10))
def test_long_prefixes_end_where_each_replica_forgot_them(seed):
    source = random.Random(seed)
    prefixes, chain = Prefixes(), [source.getrandbits(64) for _ in range(200)]
    depths = {name: source.randrange(201) for name in "abcdef"}
    for name, depth in depths.items():
        prefixes.replace(name, chain[:depth])
    asked = chain[: source.randrange(201)]
    expected = {name: min(depth, len(asked)) for name, depth in depths.items()}
    assert match(prefixes, asked, depths) == {name: n for name, n in expected.items() if n}
