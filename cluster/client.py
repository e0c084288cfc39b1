"""The seam between the front and an engine: what the API needs to know of serving.

`cluster/local.py` implements it over an engine in this process, `cluster/distributed/remote.py`
over Serve replicas. The front is tested against the former with a real model and knows nothing of
Ray.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from octavo.cluster.picture import Look
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats
from octavo.scheduler.request import Request, TokenEvent


class EngineClient(Protocol):
    def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """Events of one request until each of its samples has had the one with `finish`, or was
        given up. Closing the generator early aborts what is left.

        Raises `NeverFits`, `QueueFull`, `EngineDead`, or `RequestFailed`, before or between
        events. `request.id` must be unique among live requests.
        """

    async def ensure_up(self) -> None:
        """Returns where a step could run now. Else asks for a replica, where one can be had, and
        raises `EngineDead` unless it comes, as long as this client is one that waits for it."""

    def abort(self, request_id: str, index: int) -> None:
        """Gives up one sample of a live request: no more events of it come, and the engine frees
        its memory soon, while the other samples go on."""

    def stats(self) -> list[EngineStats]:
        """The latest snapshot of every replica; empty while none is up."""

    def fault(self) -> str | None:
        """None if a step could run now; else the reason, for `/health`: a step heartbeat."""

    async def reset_prefix_cache(self) -> int:
        """Makes every replica forget all content that no live request holds, on both tiers, and
        returns how many did. Raises `EngineDead` where one did not say that it has."""

    async def debug_blocks(self) -> list[bytes]:
        """What each replica's blocks hold, one JSON document a replica. Raises `EngineDead`."""

    async def debug_look(self, look: Look) -> bytes:
        """The replica `look.replica` at a glance, see `octavo.cluster.picture`. Raises
        `EngineDead` where it does not answer."""

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        """A film of what the replica records, see `octavo.cluster.playback.film`. Raises
        `InvalidRequest` where there is none, and `RequestFailed` or `EngineDead` where it does not
        come."""
