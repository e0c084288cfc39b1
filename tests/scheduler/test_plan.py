from __future__ import annotations

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.scheduler.plan import (
    Add,
    Append,
    Fork,
    Grow,
    Replace,
    StepPlan,
    StepResult,
    Work,
    decode_plan,
    decode_result,
    encode,
)
from octavo.scheduler.request import Logprob
from octavo.scheduler.sampling import SamplingParams

IDS = st.integers(0, 2**31 - 1)
MOVES = st.lists(st.tuples(IDS, IDS))
PLANS = st.builds(
    StepPlan,
    step=IDS,
    work=st.lists(st.builds(Work, IDS, IDS, IDS, st.booleans())),
    drop=st.lists(IDS),
    add=st.lists(
        st.builds(
            Add,
            row=IDS,
            tokens=st.lists(IDS),
            prompt_len=IDS,
            blocks=st.lists(IDS),
            computed=IDS,
            sampling=st.builds(SamplingParams, seed=IDS, logit_bias=st.just({3: -1.5})),
        )
    ),
    grow=st.lists(st.builds(Grow, IDS, st.lists(IDS))),
    reset=st.booleans(),
    fork=st.lists(st.builds(Fork, IDS, IDS, IDS)),
    append=st.lists(st.builds(Append, IDS, IDS)),
    replace=st.lists(st.builds(Replace, IDS, IDS, IDS)),
    swap_out=MOVES,
    swap_in=MOVES,
    copy=MOVES,
    store=MOVES,
)


@given(PLANS)
def test_a_plan_survives_the_wire(plan: StepPlan) -> None:
    assert decode_plan(encode(plan)) == plan


def test_a_result_survives_the_wire() -> None:
    entry = Logprob(5, -0.25, 1, [(5, -0.25), (6, -2.0)])
    result = StepResult(
        7, [5, 6], [entry, None], {0: [entry]}, {1: "why"}, 0.5, [[(5, -0.25), (6, -2.0)]], 3, 0.25
    )
    assert decode_result(encode(result)) == result


def test_the_wire_is_plain_msgpack() -> None:
    plan = StepPlan(
        3, [Work(1, 0, 4, True)], drop=[2], grow=[Grow(1, [9])], fork=[Fork(4, 1, 77)],
        append=[Append(1, 8)], replace=[Replace(1, 0, 6)], swap_out=[(1, 2)], swap_in=[(3, 4)],
        copy=[(5, 6)], store=[(7, 8)],
    )  # fmt: skip
    assert msgpack.unpackb(encode(plan)) == [
        3, [[1, 0, 4, True]], [2], [], [[1, [9]]], False, [[4, 1, 77]], [[1, 8]], [[1, 0, 6]],
        [[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        msgpack.packb({"step": 1}),
        msgpack.packb(["one", []]),
        msgpack.packb([1, [[0, 0, "many", True]]]),
        msgpack.packb([1]),
        encode(StepResult(1, [2]))[:-3],
    ],
)
def test_bytes_that_are_no_plan_are_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_plan(raw)


def test_a_decode_plan_of_256_rows_is_small() -> None:
    plan = StepPlan(10**6, [Work(row, 4096, 1, True) for row in range(256)])
    assert len(encode(plan)) < 2500
