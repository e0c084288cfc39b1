"""Films of what was: a scheduler does again all that a journal says (`octavo.cluster.journal`).

It is the scheduler that served, with its settings, so there is nothing to choose but the part that
is shown.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.reader import Segment, open_segment
from octavo.cluster.journal.records import Arrival, Planned, Result
from octavo.cluster.journal.replay import turns
from octavo.cluster.playback.film import Reel, Shot
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.scheduler import Scheduler

LAST_STEP = 2**40
PLAYING_SECONDS = 40.0
TOLD = (
    "preemption_mode",
    "enable_prefix_caching",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "allocation",
)

Step = Annotated[int, Meta(ge=0, le=LAST_STEP)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps of a journal that are to be shown, both ends included. With `before`, of the file
    that was full before the newest one was begun."""

    first: Step = 0
    last: Step = LAST_STEP
    before: bool = False


def film(path: Path, part: Part, seconds: float = PLAYING_SECONDS) -> Shot:
    """The part of the file, or as much of it as can be played in so many seconds. Raises
    `JournalError`, also where that part has no step."""
    segment = open_segment(path)
    scheduler = segment.scheduler()
    reel, note = Reel(scheduler), ""
    known = len(scheduler.roster.live)
    step, shown, at = 0, 0, 0.0
    end = time.monotonic() + seconds
    try:
        for turn in turns(segment, scheduler):
            record = turn.record
            known += isinstance(record, Arrival)
            if turn.difference is not None:
                note = f"the rest cannot be shown, as {turn.difference}"
                break
            if isinstance(record, Planned | Result):
                at = record.now - segment.start.now
            if turn.plan is None:
                continue
            if turn.step > part.last:
                note = f"it goes on after step {part.last}"
                break
            step = turn.step
            if step >= part.first:
                shown += 1
                reel.shoot(at, step, known - len(scheduler.roster.live))
            if time.monotonic() > end:
                note = f"it goes on; this is as much as was played in {seconds:g} s"
                break
    except JournalError as error:  # the file is broken from here on
        note = error.message
    if not shown:
        raise JournalError(
            f"{path} has no step from {part.first:,} on, its last one is {step:,}"
            + (f"; {note}" if note else "")
        )
    made, codes = reel.cut("journal", at, step, known - len(scheduler.roster.live))
    return (
        msgspec.structs.replace(
            made, note=note, began=segment.start.wall, settings=_settings(segment, scheduler)
        ),
        codes,
    )


def _settings(segment: Segment, scheduler: Scheduler) -> dict[str, str]:
    config: SchedulerConfig = scheduler.config
    told = {name: str(getattr(config, name)) for name in TOLD}
    told["host_blocks"] = str(scheduler.capacity.num_host_blocks)
    return {"replica": segment.start.replica or "0"} | told
