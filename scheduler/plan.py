"""The wire between the scheduler and its workers: msgpack with a checked schema.

A plan holds changes, not state. A row is born by `Add`, dies by `drop`, and its table only grows.
Workers keep rows (tokens, block table, sampling parameters) by row number and append each token
they sample themselves, so a plan can go out before the result of the one before is back.

Every rank applies a plan in exactly this order: drop, add, grow, compute.
"""

from __future__ import annotations

import msgspec

from octavo.scheduler.request import Logprob
from octavo.scheduler.sampling import SamplingParams


class Add(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row is born: `computed` of its `tokens` are in the cache already (a prefix hit)."""

    row: int
    tokens: list[int]
    prompt_len: int  # tokens[prompt_len:] were generated before a preemption
    blocks: list[int]
    computed: int
    sampling: SamplingParams


class Grow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks appended to a row's table: the only way a table changes."""

    row: int
    blocks: list[int]


class Work(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute tokens [start, start + count) of a row; with `sample`, choose the next one."""

    row: int
    start: int
    count: int
    sample: bool


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """`step` counts up by one. With `reset`, a worker forgets all rows first and takes any step."""

    step: int
    work: list[Work]
    drop: list[int] = []
    add: list[Add] = []
    grow: list[Grow] = []
    reset: bool = False


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 answers. `tokens` has one entry for each Work with `sample`, in plan order.

    `logprobs` is empty or parallel to `tokens`. `prompt_logprobs` maps the index of a Work in the
    plan to the entries of its tokens: entry i speaks of token start + i + 1, so a chunk of c tokens
    gives c entries, or c - 1 where it reaches the end of the prompt. `errors` maps the index of a
    Work to the fault that ended it (its token then means nothing); the others are not touched.
    """

    step: int
    tokens: list[int]
    logprobs: list[Logprob | None] = []
    prompt_logprobs: dict[int, list[Logprob]] = {}
    errors: dict[int, str] = {}
    compute_seconds: float = 0.0


_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(StepPlan)
_result_decoder = msgspec.msgpack.Decoder(StepResult)


def encode(message: StepPlan | StepResult) -> bytes:
    """msgpack bytes of a plan or a result."""
    return _encoder.encode(message)


def decode_plan(raw: bytes) -> StepPlan:
    """Raises `msgspec.ValidationError` where the bytes are no plan."""
    return _plan_decoder.decode(raw)


def decode_result(raw: bytes) -> StepResult:
    """Raises `msgspec.ValidationError` where the bytes are no result."""
    return _result_decoder.decode(raw)
