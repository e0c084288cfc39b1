"""What an ingress tells of a request's way, besides the request."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cluster.routing.routing import Reason
from octavo.scheduler.request import Request

ELSEWHERE = "elsewhere"  # a reason: the chosen replica could not be had, and Serve took another


@dataclass(frozen=True, slots=True)
class Route:
    """`chosen` is a replica, or "", where `cached` prompt tokens should be found. `avoided` should
    get no request: known to be dead, or silent."""

    avoided: tuple[str, ...] = ()
    chosen: str = ""
    cached: int = 0
    reason: str = Reason.NONE

    def seen_by(self, replica: str) -> Route:
        """As it came to be: what was expected of one replica need not be so at another."""
        if not self.chosen or self.chosen == replica:
            return self
        return Route(self.avoided, replica, 0, ELSEWHERE)


def tokens_of(request: Request) -> int:
    """Tokens that are known of all its samples, and have to be found or computed."""
    given = request.resumed or []
    return len(request.prompt) + sum(len(sample) for sample in given if sample is not None)
