"""Films of a scheduler, for the dashboard to play: each frame is a plan on its way.

A film is a list of frames, and what is written of it: the length of a heading (4 bytes,
little-endian), the heading (`Films`, JSON), then the codes of all frames of all films, each as
`octavo.cluster.picture` writes those of a tier.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.cluster.picture import codes, moved, write
from octavo.scheduler.glance import moves_under_way
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.scheduler import Scheduler

MOST_FRAMES = 1000  # of a film; a longer one has every second plan, or fourth, and so on
MOST_BYTES = 32 * 2**20  # of their codes


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A plan on its way: when, which, requests by what became of them, slots of the pool by what is
    in them, and how many bytes of codes belong to it, in how many runs (-1: one a block)."""

    at: float
    step: int
    running: int
    waiting: int
    finished: int
    preempted: int
    used: int
    cached: int
    tokens: int
    reserved: int
    wasted: int
    size: int
    runs: int


class Film(msgspec.Struct, frozen=True):
    """`low` and `high` are the watermarks, in free blocks. One plan in `every` has a frame. `room`
    is how many blocks the device would have room for, 0 where that is not known; `refused` requests
    were too long for the pool or the queue. `began` is when it began, in seconds since 1970, and 0
    where it never did. `note` says why it ends before its end, if it does, and `settings` are those
    of the scheduler that are not drawn."""

    name: str
    total: int
    block_size: int
    low: int
    high: int
    every: int
    frames: list[Frame]
    room: int = 0
    refused: int = 0
    began: float = 0.0
    note: str = ""
    settings: dict[str, str] = {}


class Films(msgspec.Struct, frozen=True):
    films: list[Film]


Shot = tuple[Film, bytes]
"""A film, and the codes of all of its frames."""


class Reel:
    """Takes a frame of a scheduler whenever it is asked to, unless it has so many that one in a few
    must do."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._frames: list[Frame] = []
        self._codes: list[bytes] = []
        self._bytes = 0
        self._asked = 0
        self._every = 1

    def shoot(self, at: float, step: int, finished: int) -> None:
        """A frame at the moment, while plan `step` is on its way."""
        self._asked += 1
        if (self._asked - 1) % self._every == 0:
            self._take(at, step, finished)
            if len(self._frames) > MOST_FRAMES or self._bytes > MOST_BYTES:
                self._thin()

    def cut(self, name: str, at: float, step: int, finished: int) -> Shot:
        """The film, the last frame of which is the moment now."""
        self._take(at, step, finished)
        scheduler = self._scheduler
        low, high = scheduler.config.watermarks(scheduler.capacity)
        film = Film(
            name=name,
            total=scheduler.capacity.num_blocks,
            block_size=scheduler.capacity.block_size,
            low=low,
            high=high,
            every=self._every,
            frames=self._frames,
        )
        return film, b"".join(self._codes)

    def _take(self, at: float, step: int, finished: int) -> None:
        scheduler = self._scheduler
        pool, memory = scheduler.cache.pool, measure_memory(scheduler)
        raw, runs = write(codes(pool.references, pool.named, moved(moves_under_way(scheduler))))
        frame = Frame(
            round(at, 4),
            step,
            scheduler.num_running,
            scheduler.num_waiting,
            finished,
            scheduler.counters.preemptions,
            pool.used,
            pool.cached,
            memory.token_slots,
            memory.reserved_slots,
            memory.wasted_slots,
            len(raw),
            runs,
        )
        self._frames.append(frame)
        self._codes.append(raw)
        self._bytes += len(raw)

    def _thin(self) -> None:
        self._every *= 2
        del self._frames[1::2], self._codes[1::2]
        self._bytes = sum(map(len, self._codes))


def join(shots: Iterable[Shot]) -> bytes:
    """Films as they are sent."""
    shots = list(shots)
    heading = msgspec.json.encode(Films([film for film, _ in shots]))
    length = len(heading).to_bytes(4, "little")
    return b"".join((length, heading, *(raw for _, raw in shots)))
