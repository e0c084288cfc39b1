"""An asyncio loop on a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

Resource = TypeVar("Resource")
Result = TypeVar("Result")


class Background(Generic[Resource]):
    """Keeps one asynchronous context open on a loop in the background, from `start` to `stop`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None

    def start(self, enter: Callable[[], AbstractAsyncContextManager[Resource]]) -> Resource:
        """What the context gives; `enter` is called on the loop. Raises what entering raises."""
        entered: Future[Resource] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._hold(enter, entered)), name="octavo-loop", daemon=True
        )
        self._thread.start()
        return entered.result()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, run on the loop. An interrupt of the caller cancels it there."""
        assert self._loop is not None, "start comes first"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Leaves the context and ends the thread. May be called more than once."""
        if self._thread is not None and self._thread.is_alive():
            assert self._loop is not None and self._leave is not None
            self._loop.call_soon_threadsafe(self._leave.set)
            if threading.current_thread() is not self._thread:  # a finalizer may run anywhere
                self._thread.join()

    async def _hold(
        self,
        enter: Callable[[], AbstractAsyncContextManager[Resource]],
        entered: Future[Resource],
    ) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with enter() as resource:
                entered.set_result(resource)
                await self._leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)
