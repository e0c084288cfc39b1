"""Every way a call can fail, as an HTTP status and OpenAI's error object.

A user's mistake is told in full. A fault of ours is told in one neutral sentence and logged once
with its cause: no class name, path or traceback leaves the server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from octavo.cluster.api.answers import ErrorAnswer, ErrorBody
from octavo.scheduler.errors import EngineDead, InvalidRequest, QueueFull, RequestFailed

_log = logging.getLogger(__name__)
_MOST_CHARACTERS = 2000  # of a message, which may quote what a client sent
_RETRY_DEAD_ENGINE = 5  # seconds: about what a group of workers takes to come back


class Unauthorized(Exception):
    """No API key, or one that is not known."""


class NotAdmin(Exception):
    """No admin key, or a wrong one."""


class AdminOff(Exception):
    """`route` is for admins, and the server has no admin key."""

    def __init__(self, route: str) -> None:
        super().__init__(route)
        self.message = (
            f"{route} is turned off; to turn it on, start the server with --admin-api-key KEY "
            "or set OCTAVO_ADMIN_API_KEY."
        )


class UnknownModel(Exception):
    """`name` is not served here."""

    def __init__(self, name: str, served: tuple[str, ...]) -> None:
        super().__init__(name)
        self.message = (
            f"The model `{name}` does not exist here; served: {', '.join(map(repr, served))}."
        )


class BodyTooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.message = f"The request body is larger than {limit} bytes."


class BodyTooSlow(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.message = f"Nothing more of the request body came for {seconds:g} seconds."


class RequestTimeout(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.message = (
            f"The request took longer than {seconds:g} seconds, which is this server's bound; "
            "ask for fewer tokens, or try again when it is less busy."
        )


class ForeignOrigin(Exception):
    """A web page of `origin`, which is none that the server was told of, had a browser ask."""

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self.message = (
            f"Pages of {origin} may not call this server; to let them, start it with "
            "--allowed-origins ORIGIN."
        )


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    answer: ErrorAnswer
    headers: dict[str, str] = field(default_factory=dict)


def failure(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Failure:
    if len(message) > _MOST_CHARACTERS:
        message = message[:_MOST_CHARACTERS] + "..."
    body = ErrorBody(message=message, type=kind, param=param, code=code)
    return Failure(status, ErrorAnswer(body), headers or {})


def failure_of(error: Exception, request_id: str) -> Failure:
    """What to answer for an exception; what is a fault of ours is logged here."""
    match error:
        case InvalidRequest():
            return failure(400, error.message, param=error.param or None)
        case Unauthorized():
            return _challenge("API key")
        case NotAdmin():
            return _challenge("admin key")
        case AdminOff():
            return failure(404, error.message, code="admin_api_off")
        case UnknownModel():
            return failure(404, error.message, param="model", code="model_not_found")
        case BodyTooLarge():
            return failure(413, error.message, code="request_too_large")
        case BodyTooSlow():
            return failure(408, error.message, code="request_timeout")
        case RequestTimeout():
            return failure(504, error.message, kind="server_error", code="request_timeout")
        case ForeignOrigin():
            return failure(403, error.message, code="origin_not_allowed")
        case QueueFull():
            return _unavailable(error.message, "queue_full", error.retry_after)
        case EngineDead():
            _log.error("request %s: the engine is down: %s", request_id, error)
            message = "The model is not available just now; try again in a few seconds."
            return _unavailable(message, "engine_unavailable", _RETRY_DEAD_ENGINE)
        case RequestFailed():
            _log.error("request %s failed in the engine: %s", request_id, error)
        case _:
            _log.error("request %s: unexpected error", request_id, exc_info=error)
    message = f"The server failed to answer this request (request id {request_id})."
    return failure(500, message, kind="server_error", code="internal_error")


def _challenge(what: str) -> Failure:
    message = f"Incorrect or missing {what}; send it as `Authorization: Bearer KEY`."
    return failure(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _unavailable(message: str, code: str, retry_after: int) -> Failure:
    headers = {"Retry-After": str(max(1, retry_after))}
    return failure(503, message, kind="server_error", code=code, headers=headers)
