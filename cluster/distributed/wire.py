"""What replicas and ingresses say to each other: tokens, snapshots, refusals. No pickle."""

from __future__ import annotations

import msgspec

from octavo.cluster.stats import EngineStats
from octavo.scheduler.digest import Digest
from octavo.scheduler.errors import (
    EngineDead,
    InvalidRequest,
    NeverFits,
    OctavoError,
    QueueFull,
    RequestFailed,
)
from octavo.scheduler.events import StepEvents
from octavo.scheduler.request import Request


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All new tokens of one step of one replica, for one ingress."""

    events: StepEvents


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How a replica is."""

    stats: EngineStats


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A replica has let a request in: if it dies, the request must go elsewhere."""

    replica: str
    request_id: str


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """These requests are about to run: if their replica dies now, they may be the cause."""

    request_ids: list[str]


class Held(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What can be found in a replica's cache."""

    replica: str
    digest: Digest


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An error as plain data."""

    kind: str
    message: str
    param: str = ""
    retry_after: int = 1
    replica: str = ""


Message = Tokens | Snapshot | Taken | Begun | Held

_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_request_decoder = msgspec.msgpack.Decoder(Request)
_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


def encode(message: Message | Request) -> bytes:
    return _encoder.encode(message)


def decode_message(raw: bytes) -> Message:
    """Raises `msgspec.ValidationError`."""
    return _message_decoder.decode(raw)


def decode_request(raw: bytes) -> Request:
    """Raises `msgspec.ValidationError`."""
    return _request_decoder.decode(raw)


def encode_error(error: OctavoError) -> bytes:
    """An error of the tree in `octavo.scheduler.errors`."""
    match error:
        case InvalidRequest():
            kind = NeverFits if isinstance(error, NeverFits) else InvalidRequest
            refusal = Refusal(kind.__name__, error.message, param=error.param)
        case QueueFull():
            refusal = Refusal("QueueFull", error.message, retry_after=error.retry_after)
        case EngineDead():
            refusal = Refusal(type(error).__name__, error.message, replica=error.replica)
        case _:
            refusal = Refusal(type(error).__name__, str(error))
    return _encoder.encode(refusal)


def decode_error(raw: bytes) -> OctavoError:
    """The error that `encode_error` was given."""
    refusal = _refusal_decoder.decode(raw)
    match refusal.kind:
        case "NeverFits":
            return NeverFits(refusal.param, refusal.message)
        case "InvalidRequest":
            return InvalidRequest(refusal.param, refusal.message)
        case "QueueFull":
            return QueueFull(refusal.message, refusal.retry_after)
        case "EngineDead":
            return EngineDead(refusal.message, refusal.replica)
        case _:
            return RequestFailed(refusal.message)
