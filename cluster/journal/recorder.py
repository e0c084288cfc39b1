"""Stands before a scheduler and notes all that is asked of it, and what it answers.

Noting is to keep a reference. The work (leaving out text, encoding) is done by `settle`, which the
engine calls while the workers compute; deflating and writing by the writer's thread, which does
both without holding Python's lock.
"""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import octavo.scheduler.scheduler
from octavo.cluster.journal.records import (
    Abort,
    Arrival,
    Asked,
    Chunk,
    Folding,
    Piece,
    Planned,
    Record,
    Reset,
    Result,
    Resync,
    Start,
    essence,
    outline,
    results_essence,
)
from octavo.cluster.journal.settings import JournalSettings
from octavo.cluster.journal.state import Frozen, freeze
from octavo.cluster.journal.writer import Writer
from octavo.scheduler.events import StepEvents
from octavo.scheduler.plan import StepPlan, StepResult
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler

CHUNK_RECORDS = 128
CHUNK_SECONDS = 1.0


class Driven(Protocol):
    """What the step loop asks of a scheduler: the inputs that its plans depend on."""

    @property
    def awaits_result(self) -> bool: ...
    def add(self, request: Request, now: float) -> None: ...
    def abort(self, request_id: str, index: int | None = None) -> bool: ...
    def reset_prefix_cache(self) -> None: ...
    def schedule(self, now: float) -> StepPlan | None: ...
    def update(self, result: StepResult, now: float) -> StepEvents: ...
    def resync(self) -> StepPlan: ...


class Recorder:
    """Over a new scheduler. A file is full with half of the bytes that there may be; as two are
    kept, that is the bound on both, but for the state that each begins with. Raises `JournalError`
    where it cannot be written."""

    def __init__(self, scheduler: Scheduler, settings: JournalSettings, now: float) -> None:
        self._scheduler = scheduler
        self._writer = Writer(settings.path)
        self._most = settings.most_bytes // 2
        self._replica = settings.replica
        self._run = uuid.uuid4().hex
        self._notes: list[Record] = []  # as they came
        self._chunk = Chunk()
        self._folding = Folding()
        self._cut = now
        self._chunk.append(self._start(now, None))
        self._hand_on(now)

    @property
    def path(self) -> Path:
        return self._writer.path

    @property
    def awaits_result(self) -> bool:
        if self._scheduler.num_waiting:
            self._notes.append(_ASKED)
        return self._scheduler.awaits_result

    def add(self, request: Request, now: float) -> None:
        """A request that is refused leaves no trace, here as in the scheduler."""
        self._scheduler.add(request, now)
        self._notes.append(Arrival(request, now))

    def abort(self, request_id: str, index: int | None = None) -> bool:
        found = self._scheduler.abort(request_id, index)
        if found:
            self._notes.append(Abort(request_id, index))
        return found

    def reset_prefix_cache(self) -> None:
        self._scheduler.reset_prefix_cache()
        self._notes.append(Reset())

    def schedule(self, now: float) -> StepPlan | None:
        plan = None
        try:
            plan = self._scheduler.schedule(now)
        finally:  # where it fails, it will fail when it is replayed
            self._notes.append(Planned(now, plan))
        return plan

    def update(self, result: StepResult, now: float) -> StepEvents:
        self._notes.append(Result(now, result))
        return self._scheduler.update(result, now)

    def resync(self) -> StepPlan:
        plan = self._scheduler.resync()
        self._notes.append(Resync(plan))
        return plan

    def settle(self, now: float, *, idle: bool = False) -> None:
        """Makes ready what was noted, and hands it on where that is much, or old, or the engine is
        `idle`. To be called where nobody waits."""
        notes, self._notes = self._notes, []
        if self._writer.ended:
            return
        chunk = self._chunk
        for note in notes:
            chunk.append(self._ready(note))
        if not chunk:
            return
        if idle or len(chunk) >= CHUNK_RECORDS or now - self._cut >= CHUNK_SECONDS:
            self._hand_on(now)

    def close(self, now: float) -> None:
        """The file is whole."""
        self.settle(now, idle=True)
        self._writer.close()

    def turn_over(self, now: float) -> None:
        """Goes on in a new file, which begins with the scheduler's state."""
        self.settle(now, idle=True)
        try:
            frozen = freeze(self._scheduler)
        except TypeError as error:
            self._writer.give_up(str(error))
            return
        self._folding = Folding()
        first = Chunk()
        first.append(self._start(now, frozen))
        self._writer.rotate(first, map(Piece, frozen.pieces()))

    def _hand_on(self, now: float) -> None:
        chunk, self._chunk, self._cut = self._chunk, Chunk(), now
        self._writer.put(chunk)
        if self._writer.grown >= self._most:
            self.turn_over(now)

    def _ready(self, note: Record) -> Record:
        if isinstance(note, Planned):
            return note if note.plan is None else self._folding.fold(note.now, outline(note.plan))
        if isinstance(note, Result):
            return Result(note.now, results_essence(note.result))
        if isinstance(note, Arrival):
            return Arrival(essence(note.request), note.now)
        if isinstance(note, Resync):
            self._folding.forget()
            return Resync(outline(note.plan))
        return note

    def _start(self, now: float, frozen: Frozen | None) -> Start:
        scheduler = self._scheduler
        return Start(
            dataclasses.asdict(scheduler.config),
            scheduler.capacity,
            scheduler_code(),
            self._replica,
            self._run,
            time.time(),
            now,
            None if frozen is None else frozen.head,
            0 if frozen is None else frozen.count,
        )


def open_journal(
    settings: JournalSettings | None, scheduler: Scheduler, now: float
) -> Recorder | None:
    """None where nothing is to be recorded. Raises `JournalError` where it cannot be written."""
    return None if settings is None else Recorder(scheduler, settings, now)


_ASKED = Asked()


@cache
def scheduler_code() -> str:
    """A name of the scheduler's source as it is here."""
    digest = blake2b(digest_size=8)
    folder = Path(os.path.dirname(octavo.scheduler.scheduler.__file__))
    for source in sorted(folder.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()
