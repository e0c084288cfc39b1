"""Beam search: its rules by hand, against all sequences there are, and against transformers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.scheduler.beams import BeamSearch, Hypothesis, Survivor

Early = bool | Literal["never"]
Row = list[tuple[int, float]]

STOP, A, B, C = 0, 1, 2, 3
VOCABULARY = 64
FILL = 5  # what transformers fills short sequences with


def search(
    width: int,
    max_tokens: int = 8,
    length_penalty: float = 1.0,
    early_stopping: Early = False,
    stop: frozenset[int] = frozenset({STOP}),
) -> BeamSearch:
    return BeamSearch(width, max_tokens, length_penalty, early_stopping, stop)


def row(**logprobs: float) -> Row:
    """`row(A=-1, STOP=-2)`: candidates, likeliest first."""
    ids = {"STOP": STOP, "A": A, "B": B, "C": C}
    return sorted(((ids[name], value) for name, value in logprobs.items()), key=lambda c: -c[1])


def test_survivors_are_the_likeliest_totals_of_all_beams() -> None:
    beams = search(2)
    assert beams.step([row(A=-1, B=-2, C=-3, STOP=-9)]) == [Survivor(0, A), Survivor(0, B)]
    rows = [row(A=-4, B=-5, C=-6, STOP=-9), row(A=-2.5, C=-3.5, B=-7, STOP=-9)]
    assert beams.step(rows) == [Survivor(1, A), Survivor(0, A)]  # -4.5 and -5
    assert not beams.done


def test_equal_totals_go_to_the_lower_beam_and_the_likelier_token() -> None:
    beams = search(2)
    beams.step([row(A=-1, B=-2, C=-3, STOP=-9)])
    rows = [row(A=-3, B=-4, C=-5, STOP=-9), row(A=-2, B=-3, C=-4, STOP=-9)]
    assert beams.step(rows) == [Survivor(0, A), Survivor(1, A)]


def test_totals_are_rounded_to_float32() -> None:
    """In float32, -17 - 1e-7 is -17: a tie, which the first beam wins."""
    beams = search(2)
    beams.step([row(A=-1, B=-1 - 2**-20, C=-3, STOP=-9)])
    worse, better = -16 - 1e-7, -16 + 2**-20
    rows = [row(A=worse, B=-20, C=-21, STOP=-30), row(A=better, B=-20, C=-21, STOP=-30)]
    assert -1 + worse < -1 - 2**-20 + better  # in double precision the second one is ahead
    assert beams.step(rows) == [Survivor(0, A), Survivor(1, A)]


def test_an_end_counts_only_among_the_first_width() -> None:
    beams = search(2, max_tokens=2)
    beams.step([row(A=-1, B=-2, STOP=-3, C=-4)])  # the end comes third and is forgotten
    assert beams.step([row(A=-5, B=-6, STOP=-7, C=-8)] * 2) == []
    assert [found.tokens for found in beams.best(2)] == [[A, A], [A, B]]


def test_ends_free_no_place_and_the_next_best_take_it() -> None:
    beams = search(2)
    assert beams.step([row(STOP=-1, A=-2, B=-3, C=-4)]) == [Survivor(0, A), Survivor(0, B)]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "over"),
    [
        (True, 1.0, True),  # two are finished, and that is that
        (False, 1.0, True),  # -8 / 2 is no better than -6.5 / 2
        ("never", 1.0, False),  # but -8 / 8 would be
        ("never", 0.0, True),  # without a penalty, totals only fall
        ("never", -1.0, True),
    ],
)
def test_when_the_search_is_over(early_stopping: Early, length_penalty: float, over: bool) -> None:
    beams = search(2, length_penalty=length_penalty, early_stopping=early_stopping)
    beams.step([row(STOP=-1, A=-2, B=-3, C=-4)])
    survivors = beams.step([row(STOP=-4.5, A=-6, B=-7.5, C=-8)] * 2)
    assert beams.done is over
    assert survivors == ([] if over else [Survivor(0, A), Survivor(1, A)])


@pytest.mark.parametrize(("early_stopping", "length_penalty"), [(False, 2.0), ("never", -1.0)])
def test_it_goes_on_while_the_likeliest_beam_is_ahead_of_the_last_finished(
    early_stopping: Early, length_penalty: float
) -> None:
    """Both at their present lengths: "never" looks ahead only where length is rewarded."""
    beams = search(2, length_penalty=length_penalty, early_stopping=early_stopping)
    beams.step([row(STOP=-1, A=-1.5, B=-3, C=-4)])
    assert beams.step([row(A=-1, STOP=-2, B=-7, C=-8)] * 2)  # -2.5 is ahead of -3.5
    assert not beams.done


def test_an_equal_is_not_ahead() -> None:
    beams = search(2)
    beams.step([row(STOP=-1, A=-2, B=-3, C=-4)])
    assert beams.step([row(STOP=-4.5, A=-4.5, B=-7, C=-8)] * 2) == []


def test_the_score_divides_by_generated_length_with_the_stop_token() -> None:
    beams = search(3, max_tokens=2, length_penalty=2.0)
    beams.step([row(STOP=-1, A=-1.5, B=-3, C=-4)])
    assert not beams.step([row(A=-1, STOP=-2, B=-7, C=-8)] + [row(A=-9, STOP=-9, B=-9, C=-9)] * 2)
    assert beams.best(3) == [
        Hypothesis([A, A], [-1.5, -1.0], [2, 1], score=-2.5 / 4, stop_token=None),
        Hypothesis([A, STOP], [-1.5, -2.0], [2, 2], score=-3.5 / 4, stop_token=STOP),
        Hypothesis([STOP], [-1.0], [1], score=-1.0, stop_token=STOP),
    ]
    assert beams.best(1) == beams.best(3)[:1]


def test_the_first_step_may_be_the_last() -> None:
    beams = search(2, max_tokens=1)
    assert beams.step([row(A=-1, STOP=-2, B=-3, C=-4)]) == []
    assert [(found.tokens, found.stop_token) for found in beams.best(2)] == [
        ([A], None),
        ([STOP], STOP),
    ]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_one_beam_is_greedy_decoding(early_stopping: Early) -> None:
    beams = search(1, early_stopping=early_stopping)
    assert beams.step([row(A=-1, STOP=-1.5)]) == [Survivor(0, A)]
    assert beams.step([row(STOP=-1, B=-1.5)]) == []
    assert [found.tokens for found in beams.best(1)] == [[A, STOP]]


def test_a_forbidden_token_is_never_finished() -> None:
    beams = search(2, max_tokens=1)
    beams.step([row(A=-1, STOP=-math.inf, B=-math.inf, C=-math.inf)])
    found = beams.best(2)
    assert found[0].tokens == [A]
    assert found[1] == Hypothesis([], [], [], -1e9, None)


def test_the_last_step_is_the_last_whatever_was_found() -> None:
    beams = search(2, max_tokens=2)
    beams.step([row(A=-1, B=-2, C=-3, STOP=-4)])
    dead = row(A=-math.inf, B=-math.inf, C=-math.inf, STOP=-math.inf)
    assert beams.step([row(A=-1, B=-math.inf, C=-math.inf, STOP=-math.inf), dead]) == []
    assert [found.tokens for found in beams.best(2)] == [[A, A], []]


def test_too_few_beginnings_are_filled_up_and_pushed_out_later() -> None:
    beams = search(3, stop=frozenset())
    forbidden = {"B": -math.inf, "C": -math.inf, "STOP": -math.inf}
    assert beams.step([row(A=-1, **forbidden)]) == [Survivor(0, A)] * 3
    rows = [row(A=-1, B=-2, C=-3, STOP=-4)] * 3
    assert beams.step(rows) == [Survivor(0, A), Survivor(0, B), Survivor(0, C)]


@pytest.mark.parametrize("length_penalty", [1e4, -1e4])
def test_extreme_penalties_overflow_quietly(length_penalty: float) -> None:
    beams = search(2, max_tokens=3, length_penalty=length_penalty)
    rows = [row(A=-1, B=-2, STOP=-3, C=-4)]
    while not beams.done:
        rows = [rows[0]] * len(beams.step(rows))
    assert len(beams.best(2)) == 2


@given(
    st.lists(st.floats(-8, -0.125, width=32), min_size=21, max_size=21),
    st.sampled_from([0.0, 1.0, -0.5, 2.0]),
    st.sampled_from([False, "never"]),
)
@settings(max_examples=60, deadline=None)
def test_with_room_for_all_it_finds_the_best_of_all_sequences(
    logprobs: list[float], length_penalty: float, early_stopping: Early
) -> None:
    """Three tokens, one of them an end, up to three steps: 15 sequences, in 15 beams."""
    prefixes = [p for length in range(3) for p in itertools.product((A, B), repeat=length)]
    table = {
        prefix: dict(zip((STOP, A, B), logprobs[3 * i : 3 * i + 3], strict=True))
        for i, prefix in enumerate(prefixes)
    }
    expected = sorted(
        (
            sum(table[ids[:i]][token] for i, token in enumerate(ids)) / len(ids) ** length_penalty
            for prefix in prefixes
            for ids in ((*prefix, token) for token in (STOP, A, B))
            if ids[-1] == STOP or len(ids) == 3
        ),
        reverse=True,
    )
    beams = search(15, 3, length_penalty, early_stopping)
    live: list[tuple[int, ...]] = [()]
    while not beams.done:
        # what lies beyond an end is never looked at, but for beams with a handicap
        rows = [table.get(ids, table[()]) for ids in live]
        survivors = beams.step([sorted(r.items(), key=lambda c: -c[1]) for r in rows])
        live = [(*live[s.parent], s.token) for s in survivors]
    found = beams.best(15)
    assert len({tuple(hypothesis.tokens) for hypothesis in found}) == 15
    assert [hypothesis.score for hypothesis in found] == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def models() -> list[LlamaForCausalLM]:
    """Two models, small enough for thousands of steps."""
    made = []
    for seed in range(2):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            initializer_range=0.2,
        )
        made.append(LlamaForCausalLM(config))
    return made


@torch.no_grad()
def ours(
    model: LlamaForCausalLM,
    prompt: list[int],
    beams: BeamSearch,
    top: int,
    process: Callable[[torch.Tensor, int], torch.Tensor] = lambda logprobs, length: logprobs,
) -> None:
    """Runs the search over the model, all tokens anew in each step."""
    live = [prompt]
    while not beams.done:
        logits = model(torch.tensor(live), use_cache=False).logits[:, -1]
        logprobs = process(logits.log_softmax(-1), len(live[0]) - len(prompt))
        values, ids = logprobs.topk(min(top, VOCABULARY))
        rows = [
            list(zip(row_ids, row_values, strict=True))
            for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        live = [[*live[s.parent], s.token] for s in beams.step(rows)]


def theirs(model: LlamaForCausalLM, prompt: list[int], **options: Any) -> Any:
    return model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        pad_token_id=FILL,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def assert_equal(found: list[Hypothesis], expected: Any, prompt: list[int]) -> None:
    sequences = expected.sequences[:, len(prompt) :].tolist()
    longest = max(len(hypothesis.tokens) for hypothesis in found)
    padded = [h.tokens + [FILL] * (longest - len(h.tokens)) for h in found]
    assert padded == sequences
    if "sequences_scores" in expected:  # greedy decoding has none
        scores = [hypothesis.score for hypothesis in found]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("width", [1, 2, 4, 6])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_equals_transformers(
    models: list[LlamaForCausalLM], width: int, early_stopping: Early
) -> None:
    ended, numbers = 0, torch.Generator().manual_seed(width)
    cases = itertools.product((0.0, 1.0, -0.5, 2.0), (1, 2), models, range(3))
    for length_penalty, stops, model, _ in cases:
        prompt = torch.randint(VOCABULARY, (6,), generator=numbers).tolist()
        stop = frozenset(torch.randperm(VOCABULARY, generator=numbers)[:stops].tolist())
        n = int(torch.randint(1, width + 1, (), generator=numbers))
        beams = search(width, 9, length_penalty, early_stopping, stop)
        ours(model, prompt, beams, top=(1 + stops) * width)
        options: dict[str, Any] = {"eos_token_id": sorted(stop), "max_new_tokens": 9}
        if width > 1:
            options |= {"length_penalty": length_penalty, "early_stopping": early_stopping}
        expected = theirs(model, prompt, num_beams=width, num_return_sequences=n, **options)
        assert_equal(beams.best(n), expected, prompt)
        ended += sum(found.stop_token is not None for found in beams.best(n))
    assert ended or width == 1


def test_equals_transformers_with_forbidden_tokens(models: list[LlamaForCausalLM]) -> None:
    """No end before the third token, and fewer beginnings than beams."""
    prompt, stop, allowed = [1, 2, 3], 10, [7, 10, 20, 30, 40]
    suppressed = [token for token in range(VOCABULARY) if token not in allowed]

    def process(logprobs: torch.Tensor, length: int) -> torch.Tensor:
        logprobs[:, suppressed + ([stop] if length < 2 else [])] = -math.inf
        return logprobs

    for model in models:
        beams = search(6, 6, stop=frozenset({stop}))
        ours(model, prompt, beams, 12, process)
        expected = theirs(
            model,
            prompt,
            num_beams=6,
            num_return_sequences=6,
            eos_token_id=[stop],
            max_new_tokens=6,
            min_new_tokens=2,
            suppress_tokens=suppressed,
        )
        assert_equal(beams.best(6), expected, prompt)
