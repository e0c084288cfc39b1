"""A grammar's way over the wire: with every row that is born, and only in a shape that is known."""

from __future__ import annotations

import msgspec
import pytest

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import MAX_GRAMMAR_CHARS, Grammar
from octavo.scheduler.plan import StepResult, decode_plan, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler

GRAMMAR = Grammar("regex", "[a-z]+")


def test_every_birth_of_a_row_brings_its_grammar() -> None:
    config = SchedulerConfig(max_model_len=64, block_size=4, max_num_batched_tokens=32)
    scheduler = Scheduler(config, Capacity(32, 4))
    sampling = SamplingParams(n=3, seed=1, max_tokens=8, grammar=GRAMMAR)
    scheduler.add(Request("r", [1, 2, 3], sampling), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert [add.sampling.grammar for add in decode_plan(encode(plan)).add] == [GRAMMAR]
    scheduler.update(StepResult(plan.step, [4, 5, 6]), 0.0)
    again = decode_plan(encode(scheduler.resync()))
    assert [add.sampling.grammar for add in again.add] == [GRAMMAR] * 3
    assert [add.tokens[add.prompt_len :] for add in again.add] == [[4], [5], [6]]


@pytest.mark.parametrize("wrong", [["html", "x"], ["json", ""], ["json", 3], ["regex"]])
def test_other_shapes_are_refused(wrong: list[object]) -> None:
    params = msgspec.to_builtins(SamplingParams(grammar=GRAMMAR))
    raw = msgspec.msgpack.encode([*params[:-1], wrong])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=SamplingParams)


def test_bounds() -> None:
    Grammar("json", "x" * MAX_GRAMMAR_CHARS)
    with pytest.raises(InvalidRequest, match="at most"):
        Grammar("json", "x" * (MAX_GRAMMAR_CHARS + 1))
    with pytest.raises(InvalidRequest, match="beam search takes no grammar"):
        SamplingParams(beam_width=2, grammar=GRAMMAR)
