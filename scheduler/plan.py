"""The wire between the scheduler and its workers: msgpack with a checked schema.

A plan holds changes, not state. A row is born by `Add` or `Fork`, dies by `drop`, and its table
only grows, but for the one entry that a copy-on-write replaces. Workers keep rows (tokens, block
table, sampling parameters) by row number and append each token they sample themselves, so a plan
can go out before the result of the one before is back.

Every rank applies a plan in exactly this order. Rows: drop, add, fork, append, grow, replace.
Memory: swap_out, swap_in, copy, compute, store. Tier copies may run beside the computing, as long
as nothing is read before it is written, and nothing overwritten before it is read, in this order
and from plan to plan: a block that the scheduler freed may be handed out at once.
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
    adapter: str = ""  # the name of the weights beside the model's own


class Fork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row is born as a copy of `parent`: its tokens, its table and all but the seed of its
    sampling parameters."""

    row: int
    parent: int
    seed: int


class Append(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that the scheduler chose for a row, as it does for beams."""

    row: int
    token: int


class Grow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks appended to a row's table."""

    row: int
    blocks: list[int]


class Replace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copy-on-write: entry `place` of a row's table is `block` from now on."""

    row: int
    place: int
    block: int


class Work(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute tokens [start, start + count) of a row; with `sample`, choose the next one.

    A Work of no tokens belongs to a row that was forked in this plan: it comes right behind its
    parent's, and chooses from the same logits. Rows with a beam width get candidates instead of a
    choice, and no token is appended to them.
    """

    row: int
    start: int
    count: int
    sample: bool


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """`step` counts up by one. With `reset`, a worker forgets all rows first and takes any step.

    Memory operations are (source, target) blocks: `swap_out` and `store` device to host, `swap_in`
    host to device, `copy` device to device.
    """

    step: int
    work: list[Work]
    drop: list[int] = []
    add: list[Add] = []
    grow: list[Grow] = []
    reset: bool = False
    fork: list[Fork] = []
    append: list[Append] = []
    replace: list[Replace] = []
    swap_out: list[tuple[int, int]] = []
    swap_in: list[tuple[int, int]] = []
    copy: list[tuple[int, int]] = []
    store: list[tuple[int, int]] = []


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 answers. `tokens` has one entry for each Work with `sample`, in plan order, but
    for those of beams: these have one of `candidates` each, (token id, logprob), likeliest first,
    `SamplingParams.beam_candidates` of them.

    `copied_blocks` crossed between the tiers since the last result, in `copy_seconds`.

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
    candidates: list[list[tuple[int, float]]] = []
    copied_blocks: int = 0
    copy_seconds: float = 0.0


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
