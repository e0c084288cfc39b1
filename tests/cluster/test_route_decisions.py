"""Decisions that look at few replicas, beside a plain look at the price of each."""

from __future__ import annotations

import struct

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.cluster.routing.routing import PATIENCE, Reason, Routing
from octavo.scheduler.digest import Digest

BLOCK = 10
KINDS = ("", "other")
REPLICAS = [str(number) for number in range(50)]
CHAINS = [[chain * 1000 + depth for depth in range(1, 41)] for chain in range(4)]


class World:
    """A router with a history, of which each decision is made twice."""

    def __init__(self):
        self.routing = Routing()
        self.numbers = {}
        self.now = 0.0
        self.live = []
        self.sent = 0

    def hear(self, name, backlog, requests):
        self.now += 0.01
        self.routing.hear(name, backlog, requests, self.now)

    def tell(self, name, kind, depths):
        held = [each for chain, depth in zip(CHAINS, depths, strict=True) for each in chain[:depth]]
        raw = struct.pack(f"<{len(held)}Q", *held)
        self.routing.learn(name, Digest(0, True, KINDS[kind], BLOCK, 1, raw))
        self.numbers[name] = 0

    def change(self, name, chain, depth):
        if name in self.numbers:
            self.numbers[name] += 1
            raw = struct.pack("<Q", CHAINS[chain][depth - 1])
            digest = Digest(self.numbers[name], False, "", BLOCK, 1, raw)
            self.routing.learn(name, digest)

    def route(self, chain, depth, able):
        self.sent += 1
        request, tokens = str(self.sent), depth * BLOCK + 1
        prices, worths = self.prices(tokens, chain, depth, able)
        decision = self.routing.route(
            request, tokens, lambda scope, size: CHAINS[chain][:depth], able
        )
        if not prices:
            assert decision.reason is Reason.NONE
            return
        assert prices[decision.replica] == min(prices.values())
        assert decision.cached == worths.get(decision.replica, 0)
        most = max(worths.values(), default=0)
        if decision.reason is Reason.PREFIX:
            assert decision.cached == most > 0
        elif decision.reason is Reason.QUEUE:
            assert decision.cached < most
        else:
            assert not most
        self.live.append((request, decision.replica))

    def prices(self, tokens, chain, depth, able):
        """Of every replica, and the tokens that each has."""
        routing = self.routing
        replicas, prefixes = routing._replicas, routing._prefixes
        usable = [name for name in able if name in replicas]
        usable = [name for name in usable if not replicas[name].suspect] or usable
        cached, stem = {}, None
        for name in usable:
            if replicas[name].kind is None:
                continue
            bit, count = prefixes.bit(name), 0
            for each in CHAINS[chain][:depth]:
                held = prefixes._holders.get(each, 0) | prefixes._coming.get(each, 0)
                if not held & bit:
                    break
                count += 1
            if count:
                cached[name] = min(count, (tokens - 1) // BLOCK) * BLOCK
        if cached:
            stem = CHAINS[chain][max(cached.values()) // BLOCK - 1]
        worth = max(1.0, PATIENCE / (routing._stems.get(stem, 0) + 1))
        prices = {name: replicas[name].load - worth * cached.get(name, 0) for name in usable}
        return prices, cached

    def end(self, which):
        if self.live:
            self.routing.ended(self.live.pop(which % len(self.live))[0])

    def take(self, which, name):
        if self.live:
            request, chosen = self.live[which % len(self.live)]
            self.routing.taken(request, name if which % 7 == 0 else chosen)


NAMES = st.sampled_from(REPLICAS)
DEPTHS = st.integers(0, 40)
CHAIN = st.integers(0, len(CHAINS) - 1)
ACTIONS = st.one_of(
    st.tuples(
        st.just("route"),
        CHAIN,
        st.integers(1, 40),
        st.one_of(st.just(REPLICAS), st.lists(NAMES, unique=True, max_size=8)),
    ),
    st.tuples(st.just("hear"), NAMES, st.integers(0, 20_000), st.integers(0, 50)),
    st.tuples(st.just("tell"), NAMES, st.integers(0, 1), st.tuples(*[DEPTHS] * len(CHAINS))),
    st.tuples(st.just("change"), NAMES, CHAIN, st.integers(1, 40)),
    st.tuples(st.just("end"), st.integers(0, 1000)),
    st.tuples(st.just("take"), st.integers(0, 1000), NAMES),
    st.tuples(st.sampled_from(["suspect", "forget"]), NAMES),
)


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # it looks at the clock
)
@given(
    told=st.integers(0, len(REPLICAS)),
    depth=DEPTHS,
    actions=st.lists(ACTIONS, min_size=10, max_size=40),
)
def test_any_decision_is_the_cheapest_of_all(told, depth, actions):
    world = World()
    for name in REPLICAS[:told]:  # so many that a set of holders may be large
        world.tell(name, 0, (depth, 0, 0, 0))
        world.hear(name, 0, 0)
    for action, *arguments in actions:
        if action in ("suspect", "forget"):
            getattr(world.routing, action)(*arguments)
            if action == "forget":
                world.numbers.pop(*arguments, None)
        else:
            getattr(world, action)(*arguments)


def test_of_many_that_hold_it_the_least_busy_takes_it_and_of_equals_the_first():
    world = World()
    for place, name in enumerate(REPLICAS):
        world.tell(name, 0, (40, 0, 0, 0))
        world.hear(name, 100 * abs(place - 30), 0)
    ask = lambda able: world.routing.route("1", 401, lambda *_: CHAINS[0], able)  # noqa: E731
    assert ask(REPLICAS).replica == "30"
    world.hear("30", 10_000, 0)
    assert ask(tuple(REPLICAS)).replica == "29"
    world.hear("29", 10_000, 0)
    assert ask(tuple(reversed(REPLICAS))).replica == "31"
