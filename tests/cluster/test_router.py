"""The router's choice alone: Serve is not started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from octavo.cluster.distributed.router import Router


def replicas(*names):
    return [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]


def pending(avoided, at=0.0):
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(args=[b"", "", avoided], created_at=at, routing_context=context)


def chosen(router, candidates, request):
    [choice] = asyncio.run(router.choose_replicas(replicas(*candidates), request))
    return {each.replica_id.unique_id for each in choice}


def router():
    made = Router.__new__(Router)
    made.initialize_state()
    return made


def test_two_of_those_that_are_not_avoided():
    route = router()
    seen = set()
    for _ in range(50):
        pair = chosen(route, "abcd", pending(["c"]))
        assert len(pair) == 2
        seen |= pair
    assert seen == set("abd")
    assert chosen(route, "abcd", pending(list("abd"))) == {"c"}


def test_where_all_are_avoided_nobody_is_chosen_and_serve_waits_before_it_asks_again():
    request = pending(["a"])
    assert chosen(router(), "a", request) == set()
    assert request.routing_context.should_backoff


def test_the_latest_call_knows_best():
    """One that has waited for long was told of no death since."""
    route = router()
    chosen(route, "ab", pending(["a"], at=2.0))
    assert chosen(route, "ab", pending([], at=1.0)) == {"b"}
    assert chosen(route, "ab", None) == {"b"}
    assert chosen(route, "ab", pending([], at=3.0)) == {"a", "b"}
