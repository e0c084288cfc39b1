"""The seam between the front and an engine: what the API needs to know of serving.

`cluster/local.py` implements it over an engine in this process, `cluster/distributed/remote.py`
over Serve replicas. The front is tested against the former with a real model and knows nothing of
Ray.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from octavo.cluster.stats import EngineStats
from octavo.scheduler.request import Request, TokenEvent


class EngineClient(Protocol):
    def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """Events of one request until the one with `finish`. Closing the generator early aborts.

        Raises `NeverFits`, `QueueFull`, `EngineDead`, or `RequestFailed`, before or between
        events. `request.id` must be unique among live requests.
        """

    def stats(self) -> list[EngineStats]:
        """The latest snapshot of every replica; empty while none is up."""

    def fault(self) -> str | None:
        """None if a step could run now; else the reason, for `/health`: a step heartbeat."""
