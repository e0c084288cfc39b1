"""The router's choice alone: Serve is not started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from octavo.cluster.distributed.router import Router
from octavo.cluster.routing.route import ELSEWHERE, Route


def pending(avoided, at=0.0, chosen=""):
    context = SimpleNamespace(should_backoff=False)
    route = Route(tuple(avoided), chosen)
    return SimpleNamespace(args=[b"", "", route], created_at=at, routing_context=context)


class Serve:
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


def test_the_chosen_one_comes_first_and_others_where_it_is_full_or_gone():
    route = Serve(a=1, b=2, c=0)
    assert route.choose("abc", pending([], chosen="b"))[0] == {"b"}
    assert route.choose("ac", pending([], chosen="b")) == [set(), set(), {"a", "c"}]
    assert route.choose("abc", pending(["b"], chosen="b")) == [set(), set(), {"a", "c"}]


def test_a_request_that_came_to_another_replica_than_was_chosen_says_so():
    route = Route(("c",), "a", 48, "prefix")
    assert route.seen_by("a") == route
    assert route.seen_by("b") == Route(("c",), "b", 0, ELSEWHERE)
    assert Route().seen_by("b") == Route()


def test_two_of_those_that_are_not_avoided():
    route = Serve(a=1, b=2, c=0, d=3)
    seen = set()
    for _ in range(50):
        chosen, unknown, pair = route.choose("abcd", pending(["c"]))
        assert chosen == unknown == set() and len(pair) == 2
        seen |= pair
    assert seen == set("abd")
    assert route.choose("abcd", pending(list("abd"))) == [set(), set(), {"c"}]


def test_case_43_a_replica_of_which_nothing_is_known_is_asked_first():
    route = Serve(a=1, b=2)
    assert route.choose("abc", pending([]))[1] == {"c"}
    assert route.choose("abc", pending(["c"]))[1] == set()


def test_where_all_are_avoided_nobody_is_chosen_and_serve_waits_before_it_asks_again():
    request = pending(["a"])
    assert Serve(a=1).choose("a", request) == [set(), set(), set()]
    assert request.routing_context.should_backoff


def test_the_latest_call_knows_best():
    """One that has waited for long was told of no death since."""
    route = Serve(a=1, b=1)
    route.choose("ab", pending(["a"], at=2.0))
    assert route.choose("ab", pending([], at=1.0))[2] == {"b"}
    assert route.choose("ab", None)[2] == {"b"}
    assert route.choose("ab", pending([], at=3.0))[2] == {"a", "b"}
