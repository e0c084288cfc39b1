"""The router's choice alone: Serve is not started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from octavo.cluster.distributed.router import Router


def pending(avoided, at=0.0):
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(args=[b"", "", avoided], created_at=at, routing_context=context)


class Route:
    """A router that knows the lengths of some queues, by the replicas' names."""

    def __init__(self, **lengths):
        self.router = Router.__new__(Router)
        self.router.initialize_state()
        self.router._replica_queue_len_cache = SimpleNamespace(
            get=lambda replica: lengths.get(replica.unique_id)
        )

    def choose(self, candidates, request):
        """Names, rank by rank."""
        replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=c)) for c in candidates]
        ranks = asyncio.run(self.router.choose_replicas(replicas, request))
        return [{each.replica_id.unique_id for each in rank} for rank in ranks]


def test_two_of_those_that_are_not_avoided():
    route = Route(a=1, b=2, c=0, d=3)
    seen = set()
    for _ in range(50):
        unknown, pair = route.choose("abcd", pending(["c"]))
        assert unknown == set() and len(pair) == 2
        seen |= pair
    assert seen == set("abd")
    assert route.choose("abcd", pending(list("abd"))) == [set(), {"c"}]


def test_case_43_a_replica_of_which_nothing_is_known_is_asked_first():
    route = Route(a=1, b=2)
    assert route.choose("abc", pending([]))[0] == {"c"}
    assert route.choose("abc", pending(["c"]))[0] == set()


def test_where_all_are_avoided_nobody_is_chosen_and_serve_waits_before_it_asks_again():
    request = pending(["a"])
    assert Route(a=1).choose("a", request) == [set(), set()]
    assert request.routing_context.should_backoff


def test_the_latest_call_knows_best():
    """One that has waited for long was told of no death since."""
    route = Route(a=1, b=1)
    route.choose("ab", pending(["a"], at=2.0))
    assert route.choose("ab", pending([], at=1.0))[1] == {"b"}
    assert route.choose("ab", None)[1] == {"b"}
    assert route.choose("ab", pending([], at=3.0))[1] == {"a", "b"}
