"""What is in a journal: every input of a scheduler in order, and every plan it made.

A file is a line that names the format, then chunks: length, checksum, and deflated msgpack of some
records. The first record of a file says where it begins: with a new scheduler, or with the whole
state of one. So each file of a rotating pair can be replayed without the other.

Of a request, what scheduling looks at is written, which are token ids and no text: no grammar, no
stop string, no bad word. Of results, token ids and beams' candidates, but no other logprobs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.scheduler.config import Capacity
from octavo.scheduler.plan import StepPlan, StepResult, Work
from octavo.scheduler.request import Logprob, Request
from octavo.scheduler.sampling import SamplingParams

MAGIC = b"octavo journal 1\n"
HEAD = struct.Struct("<II")  # bytes of the chunk, CRC-32 of them
MOST_CHUNK = 2**30  # bytes, packed or not


class Start(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="start"):
    """`config` is `SchedulerConfig` by its fields. `code` names the scheduler's source; a `state`
    (`octavo.cluster.journal.state`) is read by that alone, and `pieces` of it follow. `wall` is
    seconds since 1970 and `now` the engine's clock at the same moment. `run` tells one process's
    files from another's."""

    config: dict[str, Any]
    capacity: Capacity
    code: str
    replica: str
    run: str
    wall: float
    now: float
    state: bytes | None = None
    pieces: int = 0


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="piece"):
    """Of the state that a file begins with."""

    content: bytes


class Arrival(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="arrival"):
    request: Request
    now: float


class Abort(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="abort"):
    request_id: str
    index: int | None


class Reset(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="reset"):
    """The prefix cache was reset."""


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="asked"):
    """Somebody asked whether the first that waits awaits a result; the scheduler remembers what it
    found out then."""


class Planned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="plan"):
    """`plan` as `outline` leaves it, None where there was none to make. Where it `continues`, one
    token for each row of the plan before that is left comes first in its work."""

    now: float
    plan: StepPlan | None
    continues: bool = False


class Resync(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="resync"):
    plan: StepPlan


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="result"):
    now: float
    result: StepResult


Record = Start | Piece | Arrival | Abort | Reset | Asked | Planned | Resync | Result

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])
_ARRAY = struct.Struct(">BI")  # msgpack's array 32: what it begins with, and how many follow


class Chunk:
    """Records, each encoded as it comes: then nothing keeps the objects alive that it speaks of."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, record: Record) -> None:
        self._parts.append(_encoder.encode(record))

    def pack(self) -> bytes:
        """As it is in a file. Deflating lets other threads run."""
        raw = _ARRAY.pack(0xDD, len(self._parts)) + b"".join(self._parts)
        body = zlib.compress(raw, 1)
        return HEAD.pack(len(body), zlib.crc32(body)) + body


def pack(records: Iterable[Record]) -> bytes:
    """One chunk of these."""
    chunk = Chunk()
    for record in records:
        chunk.append(record)
    return chunk.pack()


def unpack(body: bytes) -> list[Record]:
    """Raises `ValueError` where these are no records."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(body, MOST_CHUNK)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise ValueError("it is larger than any chunk")
    return _decoder.decode(raw)


def essence(request: Request) -> Request:
    """A request as far as scheduling looks at it."""
    given = request.sampling
    sampling = SamplingParams(
        n=given.n,
        beam_width=given.beam_width,
        length_penalty=given.length_penalty,
        early_stopping=given.early_stopping,
        seed=given.seed,
        stop_token_ids=given.stop_token_ids,
        max_tokens=given.max_tokens,
        prompt_logprobs=given.prompt_logprobs,
    )
    return msgspec.structs.replace(request, sampling=sampling)


_NO_SAMPLING = SamplingParams()
_NO_LOGPROB = Logprob(0, 0.0, 0)


def outline(plan: StepPlan) -> StepPlan:
    """A plan without what follows from the requests in it: of the tokens of a row that is born, how
    many, and of its sampling parameters nothing."""
    if not plan.add:
        return plan
    add = [
        msgspec.structs.replace(each, tokens=[len(each.tokens)], sampling=_NO_SAMPLING)
        for each in plan.add
    ]
    return msgspec.structs.replace(plan, add=add)


def results_essence(result: StepResult) -> StepResult:
    """A result as far as the scheduler looks at it: how many prompt tokens were scored, not how."""
    if not result.logprobs and not result.prompt_logprobs and not result.errors:
        return result
    scores = {work: [_NO_LOGPROB] * len(each) for work, each in result.prompt_logprobs.items()}
    errors = dict.fromkeys(result.errors, "")
    return msgspec.structs.replace(result, logprobs=[], prompt_logprobs=scores, errors=errors)


class Folding:
    """Leaves out of each plan what nearly every one has: a token more for each row. Folding and
    unfolding remember the plan before; both begin anew with a file."""

    def __init__(self) -> None:
        self._last: list[Work] = []

    def fold(self, now: float, plan: StepPlan) -> Planned:
        continued = self._continued(plan)
        count = len(continued)
        continues = count > 0 and plan.work[:count] == continued
        self._last = plan.work
        if continues:
            plan = msgspec.structs.replace(plan, work=plan.work[count:])
        return Planned(now, plan, continues)

    def unfold(self, record: Planned) -> StepPlan | None:
        plan = record.plan
        if plan is None:
            return None
        if record.continues:
            plan = msgspec.structs.replace(plan, work=self._continued(plan) + plan.work)
        self._last = plan.work
        return plan

    def forget(self) -> None:
        """The rows are others now."""
        self._last = []

    def _continued(self, plan: StepPlan) -> list[Work]:
        gone = {*plan.drop, *(each.row for each in plan.add)}
        last = [each for each in self._last if each.row not in gone] if gone else self._last
        return [Work(each.row, each.start + each.count, 1, True) for each in last]
