"""Replicas side by side under one virtual clock, and what sends requests to them.

The router is the one that serves, with its index of prefixes; it hears of the replicas when they
report, as it does in a cluster. Serve's own two ways, for comparison: in turn, and the shorter of
two queues.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from octavo.cluster.routing.names import MOST_BLOCKS, names_of
from octavo.cluster.routing.routing import Routing
from octavo.cluster.simulation.replica import Replica
from octavo.scheduler.digest import Publisher, short_names
from octavo.scheduler.request import Request

REPORT_SECONDS = 0.5  # as `octavo.cluster.distributed.actors` has it
BlockNames = list[bytes] | None
"""Of a prompt's full blocks, see `Scheduler.add`."""
RoutingPolicy = Literal["prefix", "two-choices", "round-robin"]


class Choice(Protocol):
    """Sends requests to replicas."""

    def send(self, request: Request, names: BlockNames, now: float) -> Replica:
        """The replica that was given it."""

    def report(self, now: float) -> None:
        """What replicas report of themselves arrives."""


class ByPrefix:
    """Octavo's router."""

    def __init__(self, replicas: list[Replica], report_every: float) -> None:
        self._replicas = {each.name: each for each in replicas}
        self._able = tuple(self._replicas)
        self._routing = Routing()
        self._publishers = [
            (each, Publisher(each.scheduler.cache, each.scheduler.config.revision))
            for each in replicas
        ]
        for each, publisher in self._publishers:
            each.ended = []
            self._routing.learn(each.name, publisher.whole())
            self._routing.hear(each.name, 0, 0, 0.0)

    def report(self, now: float) -> None:
        routing = self._routing
        for each, publisher in self._publishers:
            for request_id in each.ended or ():
                routing.ended(request_id)
            each.ended = []
            if (digest := publisher.changes()) is not None:
                routing.learn(each.name, digest)
            routing.hear(each.name, each.backlog, each.ongoing, now)

    def send(self, request: Request, names: BlockNames, now: float) -> Replica:
        tokens = len(request.prompt)
        short = names_of(request)
        if names is not None:
            known = short_names(names[:MOST_BLOCKS])
            short = lambda scope, block_size: known  # noqa: E731 - one kind of replica is about
        decision = self._routing.route(request.id, tokens, short, self._able)
        self._routing.taken(request.id, decision.replica)
        replica = self._replicas[decision.replica]
        if not replica.add(request, now, names, tokens - decision.cached):
            self._routing.ended(request.id)
        return replica


class InTurn:
    def __init__(self, replicas: list[Replica]) -> None:
        self._turn = itertools.cycle(replicas)

    def report(self, now: float) -> None:
        pass

    def send(self, request: Request, names: BlockNames, now: float) -> Replica:
        replica = next(self._turn)
        replica.add(request, now, names)
        return replica


class TwoChoices:
    """The queues' lengths are known to the moment, which favours it."""

    def __init__(self, replicas: list[Replica], seed: int) -> None:
        self._replicas = replicas
        self._source = random.Random(f"choices {seed}")

    def report(self, now: float) -> None:
        pass

    def send(self, request: Request, names: BlockNames, now: float) -> Replica:
        replicas, draw = self._replicas, self._source.random
        first, step = int(draw() * len(replicas)), int(draw() * (len(replicas) - 1))
        one, other = replicas[first], replicas[(first + 1 + step) % len(replicas)]
        replica = one if one.ongoing <= other.ongoing else other
        replica.add(request, now, names)
        return replica


def choose_by(policy: RoutingPolicy, replicas: list[Replica], seed: int) -> Choice:
    """The policy of that name. One replica needs none."""
    if policy == "prefix" and len(replicas) > 1:
        return ByPrefix(replicas, REPORT_SECONDS)
    if policy == "two-choices":
        return TwoChoices(replicas, seed)
    return InTurn(replicas)


def run(
    requests: Iterable[tuple[Request, BlockNames]],
    replicas: list[Replica],
    choice: Choice,
    enough: Callable[[], bool] | None = None,
) -> float:
    """Sends each request when it arrives, and goes on until the last has ended, or it is found
    after a step that there is `enough` to see. Returns the time. Requests come in order."""
    numbers = {replica.name: number for number, replica in enumerate(replicas)}
    steps: list[tuple[float, int]] = []  # when a replica's step ends, or begins where it is idle
    pending = [False] * len(replicas)
    next_report, now = REPORT_SECONDS, 0.0
    arrivals = iter(requests)
    coming = next(arrivals, None)
    while coming is not None or steps:
        arrives = coming is not None and (not steps or coming[0].arrived <= steps[0][0])
        now = coming[0].arrived if arrives and coming is not None else steps[0][0]
        while now >= next_report:
            choice.report(next_report)
            next_report += REPORT_SECONDS
        if arrives and coming is not None:
            number = numbers[choice.send(*coming, now).name]
            if not pending[number]:
                pending[number] = True
                heapq.heappush(steps, (now, number))
            coming = next(arrivals, None)
            continue
        number = steps[0][1]
        replica = replicas[number]
        if not replica.idle:
            replica.finish(now)
            if enough is not None and enough():
                break
        ends = replica.begin(now)
        if ends is None:
            pending[number] = False
            heapq.heappop(steps)
        else:
            heapq.heapreplace(steps, (ends, number))
    return now
