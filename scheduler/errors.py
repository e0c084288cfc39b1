"""What can go wrong, drawn once:

    OctavoError
    ├── InvalidRequest     the user's mistake: names the parameter       HTTP 400
    │   └── NeverFits      larger than the context or the block pool     HTTP 400
    ├── QueueFull          try again later                               HTTP 503, Retry-After
    ├── EngineDead         the group of workers is gone                  HTTP 503
    ├── RequestFailed      this request alone ended by an internal fault HTTP 500
    └── OutOfStep          a worker missed a plan; `resync` mends it     (internal)

What a worker says of a request that it cannot go on with comes as text, see `error_of`.

"Not now" is never an exception, and a broken invariant is an `AssertionError`.
"""

from __future__ import annotations


class OctavoError(Exception):
    """The root of all errors that Octavo raises on purpose."""


class InvalidRequest(OctavoError, ValueError):
    """A request that can never be served as it stands. `param` is the field to change."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        return type(self), (self.param, self.message)


class NeverFits(InvalidRequest):
    """Longer than the model's context, or than all blocks of the pool together."""


class QueueFull(OctavoError):
    """The waiting queue is at its bound. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, int]]:
        return type(self), (self.message, self.retry_after)


class EngineDead(OctavoError):
    """The workers are gone; the message says which rank, where and why. `replica` names the one
    that died with the request, where one had begun to run it."""

    def __init__(self, message: str, replica: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.replica = replica

    def __reduce__(self) -> tuple[type[EngineDead], tuple[str, str]]:
        return type(self), (self.message, self.replica)


class RequestFailed(OctavoError):
    """An internal fault ended one request; others go on."""


STRAYED = "the grammar of this request is too complex"


def error_of(message: str) -> OctavoError:
    """What to raise for a request that ended with this message: its user's mistake where its
    grammar, which was tried before it was let in, outgrew the bounds all the same."""
    if message.startswith(STRAYED):
        return InvalidRequest("", f"{message}; make it simpler")
    return RequestFailed(message)


class OutOfStep(OctavoError):
    """A worker was handed plan `got` while it expected plan `expected`."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"expected plan {expected}, got plan {got}")
        self.expected = expected
        self.got = got
