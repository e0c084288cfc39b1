"""A loop in the background: entering, working, failing, being interrupted, leaving."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from octavo.cluster.offline.background import Background


class Room:
    """A context that remembers who is inside."""

    def __init__(self) -> None:
        self.inside = False

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[str]:
        self.inside = True
        try:
            yield threading.current_thread().name
        finally:
            self.inside = False


def test_it_works_inside_the_context_and_leaves_it_at_the_end() -> None:
    room, background = Room(), Background[str]()
    assert background.start(room.enter) == "octavo-loop"

    async def work() -> bool:
        return room.inside

    assert background.run(work())
    background.stop()
    background.stop()
    assert not room.inside
    assert "octavo-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_failure_to_enter_is_the_callers() -> None:
    @asynccontextmanager
    async def closed() -> AsyncIterator[None]:
        raise ValueError("closed")
        yield

    background = Background[None]()
    with pytest.raises(ValueError, match="closed"):
        background.start(closed)
    background.stop()


def test_a_failure_at_work_is_the_callers_and_the_loop_goes_on() -> None:
    async def fail() -> None:
        raise ValueError("at work")

    async def succeed() -> int:
        return 1

    background = Background[str]()
    background.start(Room().enter)
    with pytest.raises(ValueError, match="at work"):
        background.run(fail())
    assert background.run(succeed()) == 1
    background.stop()


def test_work_that_runs_at_the_end_is_cancelled() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    background = Background[str]()
    background.start(Room().enter)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            background.run(forever())
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert started.wait(10)
    background.stop()
    caller.join(10)
    assert cancelled.is_set()
    assert len(errors) == 1
