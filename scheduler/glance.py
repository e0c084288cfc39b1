"""What whoever watches is shown several times a second: what can be had in passing.

A pool is described by one number a block elsewhere (`octavo.cluster.picture`); here are its
requests, a line each, and in full only the one request and the one block that somebody points at.
Everything is bounded, however many requests there are. For all of it at once, see `introspection`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from octavo.scheduler.group import Group
from octavo.scheduler.introspection import state_of
from octavo.scheduler.moves import Moves
from octavo.scheduler.scheduler import Scheduler

MOST_RUNNING = 200
MOST_WAITING = 100
MOST_HOLDERS = 100


class RequestLine(msgspec.Struct, frozen=True, gc=False):
    """`blocks` and `host_blocks` are entries of its tables, shared ones counted each time. `age` is
    in seconds, since its arrival."""

    id: str
    state: str
    priority: int
    preemptions: int
    sequences: int
    prompt: int
    cached: int
    generated: int
    computed: int
    blocks: int
    host_blocks: int
    age: float


class SequenceLine(msgspec.Struct, frozen=True):
    index: int
    tokens: int
    computed: int


class RequestDetail(msgspec.Struct, frozen=True):
    """A request with the whole of one of its sequences, `index`: tokens known, granted to the
    workers, and confirmed as computed. The first `final` blocks are full and findable."""

    line: RequestLine
    index: int
    prompt: int
    tokens: int
    granted: int
    computed: int
    final: int
    table: list[int]
    host_table: list[int]
    reserved: list[int]
    sequences: list[SequenceLine]


class Holder(msgspec.Struct, frozen=True):
    """Entry `place` of this sequence's table is the block; -1 where it is held for growth."""

    request: str
    index: int
    place: int


class BlockDetail(msgspec.Struct, frozen=True):
    """`name` is that of the content, in hexadecimal, if it can be found. `move` says what is done
    with the block by a plan in flight. Of `held` tables the first `MOST_HOLDERS` are listed."""

    tier: str
    block: int
    held: int
    name: str | None
    move: str | None
    holders: list[Holder]


def running_lines(scheduler: Scheduler, now: float) -> list[RequestLine]:
    """By priority, then by admission: the last to be preempted first."""
    return [_line(group, now) for group in islice(scheduler.roster.running, MOST_RUNNING)]


def waiting_lines(scheduler: Scheduler, now: float) -> list[RequestLine]:
    """The next to be admitted first."""
    return [_line(group, now) for group in islice(scheduler.roster.waiting, MOST_WAITING)]


def moves_under_way(scheduler: Scheduler) -> Moves:
    """Memory operations of all plans in flight."""
    return Moves.of(flight.moves for flight in scheduler.roster.flights)


def describe_request(
    scheduler: Scheduler, request_id: str, index: int, now: float
) -> RequestDetail | None:
    """None where it has ended; another of its sequences where that one has."""
    group = scheduler.roster.live.get(request_id)
    if group is None or not group.sequences:
        return None
    seq = next((seq for seq in group.sequences if seq.index == index), group.sequences[0])
    return RequestDetail(
        line=_line(group, now),
        index=seq.index,
        prompt=seq.prompt_len,
        tokens=len(seq.tokens),
        granted=seq.granted,
        computed=seq.computed,
        final=seq.published,
        table=list(seq.table),
        host_table=list(seq.host_table),
        reserved=list(seq.reserved),
        sequences=[
            SequenceLine(each.index, len(each.tokens), each.computed) for each in group.sequences
        ],
    )


def describe_block(scheduler: Scheduler, tier: str, block: int) -> BlockDetail | None:
    """None where there is no such block. Walks through all tables."""
    pool, host = scheduler.cache.pool, scheduler.cache.host
    on_device = tier == "device"
    counts, names = (pool.references, pool.names) if on_device else (host.pins, host.names)
    if not 0 <= block < len(names):
        return None
    name = names[block]
    return BlockDetail(
        tier=tier,
        block=block,
        held=counts[block],
        name=None if name is None else name.hex(),
        move=_move(scheduler, on_device, block),
        holders=list(islice(_holders(scheduler.groups, on_device, block), MOST_HOLDERS)),
    )


def _line(group: Group, now: float) -> RequestLine:
    generated, known, computed, blocks, host_blocks = group.generated, 0, 0, 0, 0
    for seq in group.sequences:
        known += len(seq.tokens)
        computed += seq.computed
        blocks += len(seq.table) + len(seq.reserved)
        host_blocks += len(seq.host_table)
    prompt, sequences = group.prompt_len, len(group.sequences)
    return RequestLine(
        group.id,
        "running" if group.running else state_of(group),
        group.priority,
        group.preemptions,
        sequences,
        prompt,
        group.cached,
        generated + known - sequences * prompt,
        computed,
        blocks,
        host_blocks,
        round(now - group.arrived, 3),
    )


def _holders(groups: Iterable[Group], on_device: bool, block: int) -> Iterable[Holder]:
    for group in groups:
        for seq in group.sequences:
            table = seq.table if on_device else seq.host_table
            if block in table:
                yield Holder(group.id, seq.index, table.index(block))
            elif on_device and block in seq.reserved:
                yield Holder(group.id, seq.index, -1)


def _move(scheduler: Scheduler, on_device: bool, block: int) -> str | None:
    moves = moves_under_way(scheduler)
    kinds = {
        "swap_out": (moves.swap_out, True, False),
        "swap_in": (moves.swap_in, False, True),
        "copy": (moves.copy, True, True),
        "store": (moves.store, True, False),
    }
    for kind, (pairs, from_device, to_device) in kinds.items():
        for source, target in pairs:
            if (source, from_device) == (block, on_device):
                return kind
            if (target, to_device) == (block, on_device):
                return kind
    return None
