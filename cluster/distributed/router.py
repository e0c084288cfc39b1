"""Hands a request to the replica that its ingress chose, and never to one that is known to be dead.

Which one that should be is decided in `octavo.cluster.routing`, where the replicas' reports are
heard; the decision comes as the last argument of each call. Where none was made, or that replica
cannot be had, it is the less busy of two.

A replica whose engine died stays in Serve's list until its process has ended. So each call carries
the names of those that its ingress knows to be dead or silent, too.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from octavo.cluster.routing.route import Route

ROUTER = f"{__name__}:Router"


class Router(RequestRouter):
    """Serve matches replica and request by the request's own id, so what was chosen for one is
    given to no other. Who is dead is another matter: the latest call knows best."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Serve once."""
        self._avoided: frozenset[str] = frozenset()
        self._told_at = 0.0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The chosen one. After it, for where it is full or gone, two of those whose queues are of
        unknown length, which Serve asks for it; then two of all, of which it takes the one with the
        shorter queue. None where all are to be avoided: then Serve tries again a little later."""
        chosen = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            route: Route = pending_request.args[-1]
            chosen = route.chosen
            if pending_request.created_at >= self._told_at:
                self._told_at = pending_request.created_at
                self._avoided = frozenset(route.avoided)
        able = [
            each for each in candidate_replicas if each.replica_id.unique_id not in self._avoided
        ]
        known = self.replica_queue_len_cache
        first = [each for each in able if each.replica_id.unique_id == chosen]
        fresh = [each for each in able if known.get(each.replica_id) is None]
        return [first, *(random.sample(some, min(2, len(some))) for some in (fresh, able))]
