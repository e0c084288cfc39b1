"""Which replicas count: by what they say, when they said it, and who is known to be dead."""

from __future__ import annotations

from octavo.cluster.distributed.rollcall import FRESH_SECONDS, REMEMBERED_SECONDS, RollCall
from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.config import Capacity


def snapshot(name: str, fault: str | None = None) -> EngineStats:
    return EngineStats(name, Capacity(9, 16), 64, 4, 1, 0, 2, 3, 7, 0.0, fault, Measured())


def names(roll: RollCall, now: float) -> list[str]:
    return [each.replica for each in roll.stats(now)]


def test_a_replica_counts_while_it_speaks() -> None:
    roll = RollCall()
    assert roll.hear(snapshot("a"), 0.0) and roll.hear(snapshot("b"), 1.0)
    assert names(roll, 2.0) == ["a", "b"] and roll.avoided(2.0) == []
    late = FRESH_SECONDS + 0.5
    assert names(roll, late) == ["b"] and roll.silent(late) == roll.avoided(late) == ["a"]
    roll.hear(snapshot("a"), late)
    assert names(roll, late) == ["a", "b"] and roll.avoided(late) == []


def test_a_replica_that_hung_up_does_not_count_until_it_speaks_again() -> None:
    roll = RollCall()
    roll.hear(snapshot("a"), 0.0)
    roll.hang_up("a", 1.0)
    roll.hang_up("unheard", 1.0)
    assert names(roll, 1.0) == [] and roll.silent(1.0) == roll.avoided(1.0) == ["a"]
    roll.hear(snapshot("a"), 1.1)
    assert names(roll, 1.1) == ["a"] and roll.avoided(1.1) == []


def test_one_that_says_that_it_is_dead_is_buried() -> None:
    roll = RollCall()
    roll.hear(snapshot("a"), 0.0)
    assert not roll.hear(snapshot("a", "rank 1 died"), 1.0)
    assert names(roll, 1.0) == [] and roll.avoided(1.0) == ["a"]
    assert roll.last_fault == "rank 1 died" and roll.silent(1.0) == []


def test_what_is_still_on_its_way_from_the_dead_wakes_nobody() -> None:
    roll = RollCall()
    roll.hear(snapshot("a"), 0.0)
    roll.bury("a", "it died", 1.0)
    roll.hear(snapshot("a"), 1.1)
    assert names(roll, 1.1) == [] and roll.avoided(1.1) == ["a"]


def test_the_dead_are_forgotten_in_the_end() -> None:
    roll = RollCall()
    roll.hear(snapshot("silent"), 0.0)
    roll.bury("a", "it died", 0.0)
    now = REMEMBERED_SECONDS + 1
    roll.bury("b", "it died", now)
    roll.hear(snapshot("c"), now)
    assert roll.avoided(now) == ["b"]
