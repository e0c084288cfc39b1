"""Times steps of given shapes on a worker that serves meanwhile.

Shared machines change speed from second to second, so what steps cost is measured in the very
seconds in which a load runs: between its steps, as much time is spent on steps of made-up rows, and
the load's clock stands still. Their rows and blocks are the worker's like any others, but beyond
those that the scheduler knows of.

All blocks are written once beforehand, and all shapes computed once: unwritten memory is a page of
zeros, which caches never lose, and where memory is used for the first time a step may wait for it
for a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from driver import VOCABULARY

from octavo.cluster.simulation.cost import Load, load_of
from octavo.scheduler.config import Capacity
from octavo.scheduler.plan import Add, StepPlan, Work, decode_plan, decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.worker import Worker

OWN_ROWS = 2**20  # rows from here on are not the scheduler's
QUANTUM = 0.2  # seconds of a load, after which shapes have their turn
DECODES = 3  # steps one after another of a shape without chunks, the first of them not timed
LONGEST_GAP = 0.005  # seconds between two steps, above which the engine had nothing to do


class Clock:
    """Seconds, but for those in which it is stopped. Read from any thread."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None  # lost so far, stopped since

    def __call__(self) -> float:
        lost, since = self._state
        return (time.monotonic() if since is None else since) - lost

    @contextmanager
    def stopped(self) -> Iterator[None]:
        lost, since = self._state[0], time.monotonic()
        self._state = lost, since
        try:
            yield
        finally:
            self._state = lost + time.monotonic() - since, None


class Part(NamedTuple):
    """`rows` sequences with so many tokens in the cache, the first `shared` in the same blocks, for
    each of which so many more are computed."""

    rows: int
    cached: int
    tokens: int = 1
    shared: int = 0


Shape = tuple[Part, ...]
Execute = Callable[[bytes], bytes | None]

SHAPES: tuple[Shape, ...] = (
    # Tokens one by one: few and many sequences, short and long.
    (Part(1, 60),),
    (Part(1, 1000),),
    (Part(3, 300),),
    (Part(6, 60),),
    (Part(6, 700),),
    (Part(12, 200),),
    (Part(20, 60),),
    (Part(20, 500),),
    (Part(28, 250),),
    (Part(40, 60),),
    (Part(40, 350),),
    (Part(56, 150),),
    (Part(56, 450),),
    # The same, with a prefix in common.
    (Part(12, 500, shared=448),),
    (Part(40, 500, shared=448),),
    # Chunks of prompts.
    (Part(1, 0, 32),),
    (Part(1, 0, 100),),
    (Part(1, 0, 256),),
    (Part(1, 512, 256),),
    (Part(1, 1200, 128),),
    (Part(5, 0, 50),),
    (Part(12, 300, 20),),
    # Both.
    (Part(10, 200), Part(1, 0, 246)),
    (Part(30, 150), Part(1, 100, 226)),
    (Part(50, 300), Part(3, 0, 60)),
)


@dataclass(slots=True)
class Timed:
    """Seconds that steps of one shape took."""

    load: Load
    seconds: list[float] = field(default_factory=list)


class Interleaved:
    """Looks into a worker that has `blocks` more than its scheduler is told of."""

    def __init__(self, block_size: int, blocks: int) -> None:
        self.clock = Clock()
        self.gaps: list[float] = []  # seconds between two steps with no shapes between them
        self._block_size = block_size
        self._blocks = blocks
        self._first = 0  # of those blocks
        self._step = 0
        self._rows: list[int] = []
        self._source = random.Random(0)
        self._turns: list[Shape] = []
        self._ended = 0.0  # when the last step did, by the clock
        self._timed: dict[Shape, Timed] | None = None
        self._worked = self._spent = 0.0  # seconds, on the load and on shapes
        self._sampling = SamplingParams(temperature=0, seed=0, ignore_eos=True)

    @contextmanager
    def timing(self) -> Iterator[dict[Shape, Timed]]:
        """Within, shapes are timed in turn, for as long as the load's own steps take."""
        self._worked = self._spent = 0.0
        self._timed = found = {}
        try:
            yield found
        finally:
            self._timed = None

    def watch(self, worker: Worker) -> Worker:
        allocate, execute = worker.allocate, worker.execute

        def allocate_less(num_blocks: int) -> Capacity:
            found = allocate(num_blocks)
            self._first = num_blocks - self._blocks
            self._warm_up(num_blocks, execute)
            return msgspec.structs.replace(found, num_blocks=self._first)

        def interleave(raw: bytes) -> bytes:
            began = self.clock()
            if 0 < began - self._ended < LONGEST_GAP:
                self.gaps.append(began - self._ended)
            with self.clock.stopped():
                plan = decode_plan(raw)
                raw = encode(msgspec.structs.replace(plan, step=self._next()))
            answer = execute(raw)
            self._worked += self.clock() - began
            with self.clock.stopped():
                assert answer is not None, "rank 0 answers every plan"
                if self._timed is not None and self._worked - self._spent > QUANTUM:
                    self._take_turns(execute, self._timed)
                answer = encode(msgspec.structs.replace(decode_result(answer), step=plan.step))
            self._ended = self.clock()
            return answer

        worker.allocate = allocate_less  # type: ignore[method-assign]
        worker.execute = interleave  # type: ignore[method-assign]
        return worker

    def _take_turns(self, execute: Execute, timed: dict[Shape, Timed]) -> None:
        """Until as much was spent on shapes as on the load."""
        while self._spent < self._worked:
            if not self._turns:
                self._turns = self._source.sample(SHAPES, len(SHAPES))
            shape = self._turns.pop()
            took = self._time(shape, execute)
            self._spent += sum(took)
            load = load_of(_work(shape, 0), sum((p.rows - 1) * p.shared for p in shape))
            timed.setdefault(shape, Timed(load)).seconds += took[1:] or took

    def _time(self, shape: Shape, execute: Execute) -> list[float]:
        """Seconds of each of a few steps, in rows that are born for them."""
        steps = 1 if any(part.tokens > 1 for part in shape) else DECODES
        add = self._rows_of(shape, steps)
        execute(encode(StepPlan(self._next(), [], drop=self._rows, add=add)))
        self._rows = [each.row for each in add]
        took = []
        for at in range(steps):
            raw = encode(StepPlan(self._next(), _work(shape, at)))
            began = time.perf_counter()
            execute(raw)
            took.append(time.perf_counter() - began)
        return took

    def _rows_of(self, shape: Shape, steps: int) -> list[Add]:
        """New ones, with room for so many steps."""
        size, rows, next_block = self._block_size, list[Add](), self._first
        for part in shape:
            total = part.cached + part.tokens + steps - 1
            common = list(range(next_block, next_block + part.shared // size))
            next_block += len(common)
            for _ in range(part.rows):
                count = -(-total // size) - len(common)
                blocks = [*common, *range(next_block, next_block + count)]
                next_block += count
                tokens = self._source.choices(range(100, VOCABULARY), k=part.cached + part.tokens)
                row = OWN_ROWS + len(rows)
                rows.append(Add(row, tokens, len(tokens), blocks, part.cached, self._sampling))
        assert next_block <= self._first + self._blocks, f"{shape} needs more blocks"
        return rows

    def _warm_up(self, num_blocks: int, execute: Execute) -> None:
        """Computes a few blocks, copies them to all others, and computes all shapes."""
        self._time((Part(1, 0, 256),), execute)
        sources = range(self._first, self._first + 256 // self._block_size)
        copies = [
            (sources[block % len(sources)], block)
            for block in range(1, num_blocks)
            if block not in sources
        ]
        execute(encode(StepPlan(self._next(), [], copy=copies)))
        for shape in SHAPES:
            self._time(shape, execute)

    def _next(self) -> int:
        self._step += 1
        return self._step - 1


def _work(shape: Shape, at: int) -> list[Work]:
    """Of the shape's step `at`: rows whose tokens come one by one choose the next one."""
    rows = [part for part in shape for _ in range(part.rows)]
    return [
        Work(OWN_ROWS + row, part.cached + at, part.tokens, part.tokens == 1)
        for row, part in enumerate(rows)
    ]
