"""What lies in which block, for people: every block of both tiers, and every request's tables.

Columns instead of a record a block, so that a pool of 100,000 blocks is described in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from octavo.scheduler.group import Group
from octavo.scheduler.scheduler import Scheduler


class SequenceView(msgspec.Struct):
    """One token stream. `number` is what `TierView.holders` names it by."""

    number: int
    index: int
    tokens: int
    computed: int
    table: list[int]
    host_table: list[int]


class RequestView(msgspec.Struct):
    id: str
    state: str  # running, waiting, or swapped
    priority: int
    preemptions: int
    sequences: list[SequenceView]


class TierView(msgspec.Struct):
    """Entry b of each column speaks of block b: how many tables (or pins) hold it, the name of its
    content in hexadecimal if it can be found, and the sequences that hold it."""

    total: int
    free: int
    cached: int
    counts: list[int]
    hashes: list[str | None]
    holders: list[list[int] | None]


class BlocksView(msgspec.Struct):
    block_size: int
    device: TierView  # block 0 is the null block, never used
    host: TierView
    requests: list[RequestView]


class MemoryUse(msgspec.Struct, frozen=True):
    """Slots of the device pool that running requests hold, as the PagedAttention paper divides them
    (Kwon et al. 2023, figure 2): with a token's state in them, reserved for tokens to come, and
    never to be used. `unshared_blocks` is how many blocks would be held if nothing were shared."""

    token_slots: int
    reserved_slots: int
    wasted_slots: int
    blocks: int
    unshared_blocks: int


class QueueView(msgspec.Struct, frozen=True):
    """Those that wait: how many of them for others' results and not for room, how many with their
    content on the host, and how long the longest has waited, in seconds. One that was preempted
    waits since then. `blocks` are for all their tokens, whatever of them may be found or shared."""

    deferred: int
    swapped: int
    oldest: float
    blocks: int


def describe_queue(scheduler: Scheduler, now: float) -> QueueView:
    """A picture of the moment; `now` is on the scheduler's clock."""
    deferred = swapped = blocks = 0
    oldest = now
    for group in scheduler.roster.waiting:
        deferred += group.awaits_result() or scheduler.cache.still_waits(group)
        swapped += any(seq.host_table for seq in group.sequences)
        oldest = min(oldest, group.queued_at)
        for seq in group.sequences:
            blocks += scheduler.cache.blocks_for(len(seq.tokens) + 1)
    return QueueView(deferred, swapped, now - oldest, blocks)


def state_of(group: Group) -> str:
    """See `RequestView.state`."""
    swapped = any(seq.host_table for seq in group.sequences)
    return "running" if group.running else "swapped" if swapped else "waiting"


def describe_blocks(scheduler: Scheduler) -> BlocksView:
    """A picture of the moment."""
    cache = scheduler.cache
    requests: list[RequestView] = []
    tables: list[list[int]] = []
    host_tables: list[list[int]] = []
    for group in scheduler.groups:
        sequences = []
        for seq in group.sequences:
            sequences.append(
                SequenceView(
                    number=len(tables),
                    index=seq.index,
                    tokens=len(seq.tokens),
                    computed=seq.computed,
                    table=seq.table.tolist(),
                    host_table=seq.host_table.copy(),
                )
            )
            tables.append([*seq.table, *seq.reserved])
            host_tables.append(seq.host_table)
        requests.append(
            RequestView(
                id=group.id,
                state=state_of(group),
                priority=group.priority,
                preemptions=group.preemptions,
                sequences=sequences,
            )
        )
    pool, host = cache.pool, cache.host
    return BlocksView(
        block_size=cache.block_size,
        device=TierView(
            total=pool.num_blocks,
            free=pool.free,
            cached=pool.cached,
            counts=pool.references.tolist(),
            hashes=_hexadecimal(pool.names),
            holders=_holders(pool.num_blocks, tables),
        ),
        host=TierView(
            total=host.total,
            free=host.total - host.used,
            cached=host.cached,
            counts=host.pins.tolist(),
            hashes=_hexadecimal(host.names),
            holders=_holders(host.total, host_tables),
        ),
        requests=requests,
    )


def measure_memory(scheduler: Scheduler) -> MemoryUse:
    """Where the device memory is, right now."""
    size = scheduler.cache.block_size
    reserving = scheduler.config.allocation != "paged"
    reserved = unshared = 0
    held: dict[int, int] = {}  # slots with a token's state, by block
    for group in scheduler.roster.running:
        for seq in group.sequences:
            unshared += len(seq.table) + len(seq.reserved)
            for place, block in enumerate(seq.table):
                used = min(size, max(0, seq.granted - place * size))
                held[block] = max(used, held.get(block, 0))
            if reserving:
                slots = (len(seq.table) + len(seq.reserved)) * size
                coming = min(seq.limit, slots) - seq.granted
                reserved += coming
    tokens = sum(held.values())
    wasted = scheduler.cache.pool.used * size - tokens - reserved
    blocks = scheduler.cache.pool.used
    return MemoryUse(tokens, reserved, wasted, blocks, unshared)


def _hexadecimal(names: Iterable[bytes | None]) -> list[str | None]:
    return [None if name is None else name.hex() for name in names]


def _holders(total: int, tables: Sequence[Sequence[int]]) -> list[list[int] | None]:
    holders: list[list[int] | None] = [None] * total
    for number, table in enumerate(tables):
        alone = [number]  # one list for all of its blocks: a list a block wakes the collector
        for block in table:
            others = holders[block]
            if others is None:
                holders[block] = alone
            elif len(others) == 1:
                holders[block] = [*others, number]
            else:
                others.append(number)
    return holders
