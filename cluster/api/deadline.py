"""How long one call may take, from its first byte to the last of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from octavo.cluster.api.failures import RequestTimeout


class Deadline:
    """Begins to run when it is made. `seconds` None: as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        now = asyncio.get_running_loop().time()
        self._at = None if seconds is None else now + seconds

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Callable[[], None]]:
        """Ends what is inside in time, unless its value is called before. Raises
        `RequestTimeout`."""
        limit = asyncio.timeout_at(self._at)
        inside = True

        def lift() -> None:
            if inside and not limit.expired():
                limit.reschedule(None)

        try:
            async with limit:
                try:
                    yield lift
                finally:
                    inside = False
        except TimeoutError:
            if limit.expired() and self._seconds is not None:
                raise RequestTimeout(self._seconds) from None
            raise
