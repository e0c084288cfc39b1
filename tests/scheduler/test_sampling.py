from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.sampling import SamplingParams, mix_seed


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 0), ("n", 1_000_000), ("best_of", 0),
        ("temperature", -1), ("temperature", 2.5), ("temperature", math.nan),
        ("temperature", math.inf), ("top_p", 2), ("top_p", -0.5), ("top_k", -2), ("min_p", 1.5),
        ("presence_penalty", 9), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
        ("repetition_penalty", math.nan), ("seed", 2**63), ("stop", ("",)), ("max_tokens", -1),
        ("min_tokens", -1), ("min_tokens", 17), ("logprobs", 21), ("prompt_logprobs", -1),
        ("logit_bias", {5: 1000}), ("logit_bias", {5: math.nan}), ("logit_bias", {-1: 1}),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        SamplingParams(**{param: value})
    assert caught.value.param == param


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0}, {"top_p": 1}, {"temperature": 0}, {"temperature": 2}, {"top_k": -1},
        {"max_tokens": 0}, {"max_tokens": None, "min_tokens": 5}, {"logprobs": 0},
        {"n": 2, "best_of": 4}, {"seed": -(2**63)},
    ],
)  # fmt: skip
def test_borders_are_accepted(params: dict[str, Any]) -> None:
    SamplingParams(**params)


def test_best_of_below_n_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="best_of must be at least n"):
        SamplingParams(n=2, best_of=1)


def test_stops_may_be_written_the_short_way() -> None:
    short: dict[str, Any] = {"stop": "a", "stop_token_ids": [1, 2]}
    params = SamplingParams(**short)
    assert params.stop == ("a",) and params.stop_token_ids == (1, 2)


def test_choices_have_seeds_of_their_own() -> None:
    assert mix_seed(7, 0) == 7
    seeds = {mix_seed(seed, index) for seed in (0, 1, -5, 2**63 - 1) for index in range(128)}
    assert len(seeds) == 4 * 128
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
