"""Which replica a request should run on: where most of its prefix is, unless too much waits there.

Pure: no Ray, no sockets, no clock of its own. The unit is the token that has to be computed. Each
replica's price for a request is what stands before it, less what the prefix that it holds is worth,
and the cheapest gets it. So a session stays where its turns before were, new ones go where there is
least to do, and a prefix that is too hot for one replica is computed on a second as well, which has
it from then on. Weighing cached tokens against load is Preble's idea (Srivatsa et al., 2024).

What stands before a request is what its replica reported last, and what was sent there since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from octavo.cluster.routing.candidates import Candidates
from octavo.cluster.routing.prefixes import MOST_KNOWN, Prefixes
from octavo.scheduler.digest import Digest, unpack_names

STREAM_TOKENS = 16  # what a request counts for besides its prompt, while it runs
SHARE_SECONDS = 60.0  # in which what a replica was given is forgotten, but for a third
SHARE_WEIGHT = 0.05  # between replicas of which none has anything to do
# What a saved token is worth. One that is computed twice delays all who come later, takes memory
# from what others would find, and draws the next turns along; see benchmarks/routing.py.
PATIENCE = 32.0
MOST_STEMS = 4096
MOST_COMING = 64  # blocks of one request: enough to tell what begins like it

Kind = tuple[str, int]
"""The scope and the block size that names depend on, see `Digest`."""
Names = Callable[[str, int], list[int]]
"""The short names of a request's blocks, of one kind."""


class Reason(StrEnum):
    """Why a replica was chosen, as metrics call it."""

    PREFIX = "prefix"  # no other holds more of it
    QUEUE = "queue"  # another holds more, but has too much to do
    NEW = "new"  # nobody holds any of it
    LOAD = "load"  # of prefixes nothing is known, or nothing can be used
    NONE = "none"  # nothing is known of any replica: Serve chooses


@dataclass(frozen=True, slots=True)
class Decision:
    """`replica` is "" where nothing is known. `cached` prompt tokens should be found there."""

    replica: str
    cached: int
    reason: Reason


@dataclass(slots=True)
class _Live:
    """A request under way: tokens to compute, and names that its replica is promised to have.
    `reported` is whether the replica's last report counted it."""

    replica: str
    tokens: int
    names: list[int]
    reported: bool = False


@dataclass(slots=True)
class _Replica:
    """`load` is what stands before a request that comes now, in tokens: as reported last, and sent
    since; and a small part of `share`, what it was given of late. Where it changes, the replica is
    in `changed`. `number` is that of its last digest."""

    name: str
    changed: dict[str, _Replica]
    load: float = 0.0
    share: float = 0.0
    heard_at: float = 0.0
    taken: list[_Live] = field(default_factory=list)  # since the last report
    ended: list[_Live] = field(default_factory=list)  # since the last report
    sent: int = 0  # tokens of requests that no report has counted
    suspect: bool = False
    kind: Kind | None = None  # of its names, where it is known what it holds
    number: int = -1

    def send(self, tokens: int) -> None:
        self.sent += tokens
        self.share += tokens
        self.set_load(self.load + (1 + SHARE_WEIGHT) * tokens)

    def count(self, live: _Live) -> None:
        """The request is in the replica's reports, or has ended, or is elsewhere."""
        if not live.reported:
            live.reported = True
            self.sent -= live.tokens
            self.set_load(self.load - live.tokens)

    def set_load(self, load: float) -> None:
        self.load = load
        self.changed[self.name] = self


class _Holding(NamedTuple):
    """A set of replicas, and the prompt tokens that are found on each of them."""

    cached: int
    replicas: int
    kind: Kind


class _Field(NamedTuple):
    """For as long as those who are able are those `asked` for: who can be chosen, and which of them
    name blocks alike."""

    asked: tuple[str, ...]
    candidates: Candidates
    alike: dict[Kind, int]


class Routing:
    """Of one router, of perhaps several. Holds something for each replica that was heard and for
    each request under way, and at most `most` names. Times are seconds of one monotonic clock."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._live: dict[str, _Live] = {}
        self._prefixes = Prefixes(most)
        self._stems: dict[int, int] = {}  # how often requests parted at a name; oldest first
        # Made anew where replicas come, go, fall silent, or are known anew; else loads change.
        self._field: _Field | None = None
        self._changed: dict[str, _Replica] = {}

    # What is heard

    def hear(self, name: str, backlog: int, requests: int, now: float) -> None:
        """A replica's report: prompt tokens that it is yet to compute, and requests that it has.
        What it took before is in them."""
        replica = self._find(name)
        if replica.suspect:
            replica.suspect, self._field = False, None
        for live in replica.taken:
            replica.count(live)
        for live in replica.ended:  # by now the replica has told what they left
            self._prefixes.release(name, live.names)
        replica.taken.clear()
        replica.ended.clear()
        replica.share *= math.exp((replica.heard_at - now) / SHARE_SECONDS)
        replica.heard_at = now
        reported = backlog + STREAM_TOKENS * requests
        replica.set_load(reported + replica.sent + SHARE_WEIGHT * replica.share)

    def learn(self, name: str, digest: Digest) -> None:
        """What a replica holds. Where a digest before this one was missed, nothing is known of it
        until a whole one comes."""
        replica = self._find(name)
        try:
            added, removed = unpack_names(digest.added), unpack_names(digest.removed)
        except ValueError:
            self._unlearn(name, replica)
            return
        if digest.whole:
            self._prefixes.replace(name, added, digest.stride)
            replica.kind, self._field = (digest.scope, digest.block_size), None
        elif replica.kind is not None:
            if digest.number == replica.number + 1:
                self._prefixes.add(name, added)
                self._prefixes.remove(name, removed)
            else:
                self._unlearn(name, replica)
        replica.number = digest.number

    def unknown(self) -> list[str]:
        """Replicas of which it is not known what they hold."""
        return [name for name, replica in self._replicas.items() if replica.kind is None]

    def suspect(self, name: str) -> None:
        """A replica did not answer: others are better until it is heard again."""
        if (replica := self._replicas.get(name)) is not None:
            replica.suspect, self._field = True, None

    def forget(self, name: str) -> None:
        """A replica is gone."""
        self._prefixes.drop(name)
        self._field = None
        if (replica := self._replicas.pop(name, None)) is not None:
            for live in replica.ended:
                self._prefixes.release(name, live.names)
        for live in self._live.values():
            live.reported |= live.replica == name

    # What is asked

    def route(
        self,
        request_id: str,
        tokens: int,
        names: Names | None,
        able: Collection[str],
    ) -> Decision:
        """Which of the replicas that are `able` to serve should take a request of so many prompt
        tokens. Without `names` it can use nothing that is cached."""
        field = self._find_field(able)
        candidates = field.candidates
        if not candidates.names:
            return Decision("", 0, Reason.NONE)
        chains, holdings = self._look_up(field, tokens, names)
        most = max(holdings, key=_cached, default=None)
        worth = self._worth(most, chains) if most is not None else 0.0
        found = 0
        best = candidates.least()
        for each in holdings:  # who holds none is at best as good as the least busy of all
            load, place = candidates.least_among(each.replicas)
            if (price := (load - worth * each.cached, place)) < best:
                best, found = price, each.cached
        place = best[1]
        chosen = candidates.names[place]
        replica = self._replicas[chosen]
        live = self._live[request_id] = _Live(chosen, tokens - found + STREAM_TOKENS, [])
        replica.send(live.tokens)
        if replica.kind in chains:
            begin = found // replica.kind[1]
            coming = chains[replica.kind][begin : begin + MOST_COMING]
            live.names = self._prefixes.promise(chosen, coming)
        return Decision(chosen, found, _reason(found, most, bool(chains)))

    def taken(self, request_id: str, name: str) -> None:
        """A replica has taken a request, be it another than was chosen: its next report counts
        it."""
        live, replica = self._live.get(request_id), self._replicas.get(name)
        if live is None or live.reported or replica is None:
            return
        if live.replica != name:
            self._move(live, name)
        replica.taken.append(live)

    def ended(self, request_id: str) -> None:
        """A request has ended, in whatever way."""
        if (live := self._live.pop(request_id, None)) is None:
            return
        if (replica := self._replicas.get(live.replica)) is not None:
            replica.count(live)
            replica.ended.append(live)
        else:
            self._prefixes.release(live.replica, live.names)

    def _find(self, name: str) -> _Replica:
        """Of which something was heard, perhaps for the first time."""
        if (replica := self._replicas.get(name)) is None:
            replica = self._replicas[name] = _Replica(name, self._changed)
            self._field = None
        return replica

    def _find_field(self, able: Collection[str]) -> _Field:
        """Of those that are `able`, with what stands before a request now."""
        field, asked = self._field, tuple(able)
        if field is None or (asked is not field.asked and asked != field.asked):
            field = self._field = self._make_field(asked)
        elif self._changed:
            places = field.candidates.places
            field.candidates.change(
                {places[n]: each.load for n, each in self._changed.items() if n in places}
            )
        self._changed.clear()
        return field

    def _make_field(self, able: tuple[str, ...]) -> _Field:
        replicas = self._replicas
        usable = [name for name in dict.fromkeys(able) if name in replicas]
        usable = [name for name in usable if not replicas[name].suspect] or usable
        bits, alike = list[int](), dict[Kind, int]()
        for name in usable:
            kind = replicas[name].kind
            bits.append(0 if kind is None else self._prefixes.bit(name))
            if kind is not None:
                alike[kind] = alike.get(kind, 0) | bits[-1]
        loads = [replicas[name].load for name in usable]
        return _Field(able, Candidates(usable, loads, bits), alike)

    def _look_up(
        self, field: _Field, tokens: int, names: Names | None
    ) -> tuple[dict[Kind, list[int]], list[_Holding]]:
        """The request's names, of each kind that is about: one, but while a model is exchanged. And
        who holds how much of them. The last token is always computed."""
        chains: dict[Kind, list[int]] = {}
        found: list[_Holding] = []
        if names is not None:
            for kind, those in field.alike.items():
                scope, size = kind
                chain = chains[kind] = names(scope, size)
                most = (tokens - 1) // size
                for count, holders in self._prefixes.match(chain, those):
                    found.append(_Holding(min(count, most) * size, holders, kind))
        return chains, found

    def _worth(self, most: _Holding, chains: dict[Kind, list[int]]) -> float:
        """Of a token that is found, where some hold the `most`. Less the more requests have parted
        at the same place of late: a prefix that many have in common may well be computed once more,
        it will serve them all."""
        if not most.cached:
            return 1.0
        stem = chains[most.kind][most.cached // most.kind[1] - 1]
        times = self._stems.pop(stem, 0) + 1
        self._stems[stem] = times
        if len(self._stems) > MOST_STEMS:
            del self._stems[next(iter(self._stems))]
        return max(1.0, PATIENCE / times)

    def _move(self, live: _Live, name: str) -> None:
        """Serve gave the request to another replica than was chosen."""
        if (replica := self._replicas.get(live.replica)) is not None:
            replica.count(live)
        self._prefixes.release(live.replica, live.names)
        live.names = self._prefixes.promise(name, live.names)
        live.replica, live.reported = name, False
        self._replicas[name].send(live.tokens)

    def _unlearn(self, name: str, replica: _Replica) -> None:
        self._prefixes.drop(name)
        replica.kind, self._field = None, None


def _cached(holding: _Holding) -> int:
    return holding.cached


def _reason(found: int, most: _Holding | None, known: bool) -> Reason:
    if not known:
        return Reason.LOAD
    if most is None or not most.cached:
        return Reason.NEW
    return Reason.PREFIX if found == most.cached else Reason.QUEUE
