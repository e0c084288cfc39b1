"""Bias, forbidden ends and penalties against a plain loop over all tokens."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.scheduler.mirror import Row
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.adjust import Adjuster, is_adjusted

VOCABULARY = 40


def by_loop(logits: list[float], row: Row) -> list[float]:
    sampling = row.sampling
    found = list(logits)
    output = row.tokens[row.prompt_len :]
    for token in range(len(found)):
        if sampling.allowed_token_ids and token not in sampling.allowed_token_ids:
            found[token] = float("-inf")
        if any((*output, token)[-len(bad) :] == bad for bad in sampling.bad_token_ids):
            found[token] = float("-inf")
    for token, bias in sampling.logit_bias.items():
        found[token] += bias
    if len(row.tokens) - row.prompt_len < sampling.min_tokens:
        for token in sampling.stop_token_ids:
            found[token] = float("-inf")
    for token in set(row.tokens):
        repetition = sampling.repetition_penalty
        found[token] = found[token] / repetition if found[token] > 0 else found[token] * repetition
        found[token] -= sampling.frequency_penalty * output.count(token)
        found[token] -= sampling.presence_penalty * (token in output)
    return found


CASES = [
    SamplingParams(),
    SamplingParams(logit_bias={3: 5.0, 7: -100.0}),
    SamplingParams(min_tokens=2, stop_token_ids=(1, 9)),
    SamplingParams(repetition_penalty=1.5),
    SamplingParams(repetition_penalty=0.5),
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(presence_penalty=-1.5),
    SamplingParams(allowed_token_ids=(2, 3, 39, 4000), logit_bias={3: 5.0, 4: 9.0}),
    SamplingParams(bad_token_ids=((5,), (5, 6), *((token, 7) for token in range(40)))),
    SamplingParams(
        logit_bias={2: 4.0, 9: 9.0},
        min_tokens=3,
        stop_token_ids=(9,),
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.4,
    ),
]


def make_rows(rng: random.Random) -> dict[int, Row]:
    return {
        3 * i + 1: Row([rng.randrange(12) for _ in range(6)], 6, [], 0, sampling)
        for i, sampling in enumerate(CASES)
    }


def test_every_step_of_a_mixed_batch():
    rng = random.Random(0)
    adjuster, rows = Adjuster(), make_rows(rng)
    for _ in range(20):
        logits = torch.randn(len(rows), VOCABULARY) * 3
        expected = [by_loop(logits[i].tolist(), row) for i, row in enumerate(rows.values())]
        adjuster.apply(logits, list(rows), list(rows.values()))
        torch.testing.assert_close(logits, torch.tensor(expected), atol=1e-5, rtol=1e-5)
        for row in rows.values():
            row.tokens.append(rng.randrange(12))


def test_a_row_that_is_born_again_starts_its_history_over():
    adjuster = Adjuster()
    sampling = SamplingParams(frequency_penalty=1.0)
    for tokens in ([1, 2, 2, 2], [3, 4]):
        row = Row(tokens, 1, [], 0, sampling)
        logits = torch.zeros(1, VOCABULARY)
        adjuster.apply(logits, [0], [row])
        assert logits[0].tolist() == by_loop([0.0] * VOCABULARY, row)
        adjuster.forget_all_but({0: row})
    adjuster.forget_all_but({})
    assert adjuster.live_rows == 0


def test_tokens_given_already_count_as_output_after_a_preemption():
    sampling = SamplingParams(presence_penalty=2.0)
    logits = torch.zeros(1, VOCABULARY)
    Adjuster().apply(logits, [0], [Row([5, 6, 6], 1, [], 0, sampling)])
    assert logits[0, 5] == 0
    assert logits[0, 6] == -2


def test_ids_outside_the_vocabulary_do_no_harm():
    sampling = SamplingParams(logit_bias={5: 1.0, 10**8: 5.0}, min_tokens=1, stop_token_ids=(99,))
    logits = torch.zeros(1, VOCABULARY)
    Adjuster().apply(logits, [0], [Row([1], 1, [], 0, sampling)])
    assert logits.nonzero().tolist() == [[0, 5]]


@pytest.mark.parametrize("sampling", CASES[1:])
def test_rows_that_need_nothing_are_left_out(sampling):
    assert is_adjusted(Row([1], 1, [], 0, sampling))
    assert not is_adjusted(Row([1], 1, [], 0, SamplingParams(min_tokens=5)))
    ends = SamplingParams(min_tokens=2, stop_token_ids=(1,))
    assert [is_adjusted(Row([0] * n, 4, [], 0, ends)) for n in (4, 5, 6)] == [True, True, False]
