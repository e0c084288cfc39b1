"""Which replica Serve hands a request to: the less busy of two, none that is known to be dead.

A replica whose engine died stays in Serve's list until its process has ended, and since it has
nothing to do it would get every request. So each call carries the names of those that its ingress
knows to be dead or silent, as its last argument.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
)

ROUTER = f"{__name__}:Router"


class Router(FIFOMixin, RequestRouter):
    """Power of two choices. Serve may give the replica that was chosen for one request to another
    that came before it, so what the latest call tells holds for all."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Serve once."""
        self._avoided: frozenset[str] = frozenset()
        self._told_at = 0.0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Two of those whose queues are of unknown length, which Serve asks for it; where there are
        none, or they do not answer, two of all, of which it takes the one with the shorter queue.
        Else a replica that came later would get nothing of a burst. None where all are to be
        avoided: then Serve tries again a little later."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if pending_request.created_at >= self._told_at:
                self._told_at = pending_request.created_at
                self._avoided = frozenset(pending_request.args[-1])
        able = [
            each for each in candidate_replicas if each.replica_id.unique_id not in self._avoided
        ]
        known = self.replica_queue_len_cache
        fresh = [each for each in able if known.get(each.replica_id) is None]
        return [random.sample(some, min(2, len(some))) for some in (fresh, able)]
