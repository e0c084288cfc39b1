"""How long one call may take, from its first byte to the last of its answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from octavo.cluster.api.failures import RequestTimeout


class Deadline:
    """Begins to run when it is made. `seconds` None: as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._at = 0.0 if seconds is None else asyncio.get_running_loop().time() + seconds

    def hold(self) -> Limit:
        """To be entered with `async with`: what is inside ends in time, in `RequestTimeout`."""
        return Limit(self._seconds, self._at)


class Limit:
    """See `Deadline.hold`."""

    def __init__(self, seconds: float | None, at: float) -> None:
        self._seconds = seconds
        self._at = at
        self._timeout: asyncio.Timeout | None = None

    def lift(self) -> None:
        """What is still to come may take as long as it takes."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None)

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            self._timeout = await asyncio.timeout_at(self._at).__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is None or self._seconds is None:
            return
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise RequestTimeout(self._seconds) from None
