"""One engine at a glance, for a page that looks several times a second: a code for each block of
both tiers, its requests, and more of what somebody points at.

What a look costs is the engine's time: the codes of 100,000 blocks are made in a third of a
millisecond, out of columns that the pools keep anyway, and however many people watch, what they all
see is made ten times a second at most.

A picture is, in this order: the length of its heading (4 bytes, little-endian), the heading (JSON),
the device's codes, the host's codes. A code is one byte: 0 free, 1 free but findable, n + 1 held by
n tables (126 stands for more, too), plus 128 while a plan in flight copies the block from or to
somewhere. Where that is shorter, codes are written as runs: all lengths (4 bytes each,
little-endian), then a code for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.scheduler.glance import (
    BlockDetail,
    RequestDetail,
    RequestLine,
    describe_block,
    describe_request,
    moves_under_way,
    running_lines,
    waiting_lines,
)
from octavo.scheduler.moves import Moves
from octavo.scheduler.scheduler import Scheduler

LOOK_SECONDS = 0.1  # between two pictures of the same engine
MOST_HELD = 126
COPIED = 128
STEPS_KEPT = 240


class Look(msgspec.Struct, frozen=True):
    """What a viewer wants to see: of which replica, and what is pointed at, if anything."""

    replica: str = ""
    request: str = ""
    index: int = 0
    tier: str = "device"
    block: int = -1


class TierLine(msgspec.Struct, frozen=True):
    """`runs` is how many runs the codes are written as, -1 where there is a code a block."""

    total: int
    used: int
    cached: int
    size: int  # in bytes, of the codes
    runs: int


class StepLine(NamedTuple):
    """A step: when its result came, tokens, seconds that it took, and that rank 0 computed."""

    at: float
    tokens: int
    seconds: float
    computing: float


class Heading(msgspec.Struct, frozen=True):
    """`now` is on the engine's clock, in seconds. `low` and `high` are its watermarks, in free
    blocks. Of `num_running` and `num_waiting` requests the first are listed."""

    replica: str
    now: float
    block_size: int
    low: int
    high: int
    device: TierLine
    host: TierLine
    num_running: int
    num_waiting: int
    running: list[RequestLine]
    waiting: list[RequestLine]
    steps: list[StepLine]
    request: RequestDetail | None
    block: BlockDetail | None


class _Seen(NamedTuple):
    """What all see, and when it was made."""

    now: float
    device: tuple[bytes, TierLine]
    host: tuple[bytes, TierLine]
    running: list[RequestLine]
    waiting: list[RequestLine]


class Painter:
    """Makes pictures of one engine. Called in its step loop's thread, between two steps."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._seen: _Seen | None = None
        self._steps: deque[StepLine] = deque(maxlen=STEPS_KEPT)

    def stepped(self, at: float, tokens: int, seconds: float, computing: float) -> None:
        """A step has ended."""
        self._steps.append(StepLine(at, tokens, seconds, computing))

    def paint(self, look: Look) -> bytes:
        """The picture as it is sent. What is pointed at is as it is now, all the rest at most
        `LOOK_SECONDS` old."""
        scheduler, now = self._scheduler, self._clock()
        seen = self._seen
        if seen is None or now - seen.now >= LOOK_SECONDS:
            seen = self._seen = self._look(now)
        pointed = look.request and describe_request(scheduler, look.request, look.index, now)
        low, high = scheduler.config.watermarks(scheduler.capacity)
        heading = Heading(
            replica=look.replica,
            now=seen.now,
            block_size=scheduler.cache.block_size,
            low=low,
            high=high,
            device=seen.device[1],
            host=seen.host[1],
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            running=seen.running,
            waiting=seen.waiting,
            steps=list(self._steps),
            request=pointed or None,
            block=describe_block(scheduler, look.tier, look.block) if look.block >= 0 else None,
        )
        raw = msgspec.json.encode(heading)
        return b"".join((len(raw).to_bytes(4, "little"), raw, seen.device[0], seen.host[0]))

    def _look(self, now: float) -> _Seen:
        scheduler = self._scheduler
        pool, host, moves = scheduler.cache.pool, scheduler.cache.host, moves_under_way(scheduler)
        out, back = [*moves.swap_out, *moves.store], moves.swap_in
        device = codes(pool.references, pool.named, moved(moves))
        behind = codes(host.pins, host.named, [*_seconds(out), *_firsts(back)])
        return _Seen(
            now=now,
            device=_written(device, pool.used, pool.cached),
            host=_written(behind, host.used, host.cached),
            running=running_lines(scheduler, now),
            waiting=waiting_lines(scheduler, now),
        )


def codes(counts: Any, named: bytearray, moving: Sequence[int]) -> NDArray[np.uint8]:
    """One a block; `counts` is an array of unsigned ints, `moving` names blocks."""
    held = np.minimum(np.frombuffer(counts, np.uint32), MOST_HELD).astype(np.uint8)
    made = np.where(held > 0, held + np.uint8(1), np.frombuffer(named, np.uint8))
    made[list(moving)] |= np.uint8(COPIED)
    return made


def moved(moves: Moves) -> list[int]:
    """Device blocks that are copied from or to somewhere."""
    out, back = [*moves.swap_out, *moves.store], moves.swap_in
    return [*_firsts(out), *_seconds(back), *_firsts(moves.copy), *_seconds(moves.copy)]


def write(made: NDArray[np.uint8]) -> tuple[bytes, int]:
    """Codes as they are sent, and in how many runs; -1 where it is one a block, which is never
    longer than that."""
    starts = np.flatnonzero(made[1:] != made[:-1]) + 1
    starts = np.concatenate(([0], starts)) if made.size else starts
    if 5 * starts.size >= made.size:
        return made.tobytes(), -1
    lengths = np.diff(starts, append=made.size).astype("<u4")
    return lengths.tobytes() + made[starts].tobytes(), int(starts.size)


def _written(made: NDArray[np.uint8], used: int, cached: int) -> tuple[bytes, TierLine]:
    raw, runs = write(made)
    return raw, TierLine(int(made.size), used, cached, len(raw), runs)


def _firsts(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return [first for first, _ in pairs]


def _seconds(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return [second for _, second in pairs]
