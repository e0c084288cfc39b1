"""A whole step's choosing: mixed rows, log-probabilities, faults."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.kernels.select import select
from octavo.scheduler.mirror import Row
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.logprobs import LOWEST, describe
from octavo.workers.sampler import Sampled, Sampler, describe_prompt

VOCABULARY = 300


def row(tokens=(1, 2, 3), prompt_len=2, **changes):
    return Row(list(tokens), prompt_len, [], 0, SamplingParams(**({"seed": 3} | changes)))


def sample(logits: torch.Tensor, rows: list[Row]) -> Sampled:
    numbers = range(10, 10 + len(rows))
    return Sampler(select(torch.device("cpu"))).sample(
        logits.clone(), numbers, dict(zip(numbers, rows, strict=True))
    )


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(4)) * 3


MIXED = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "logprobs": 3},
    {"temperature": 0, "repetition_penalty": 1.5, "logprobs": 0},
    {"temperature": 1.0, "top_k": 20, "presence_penalty": 1.0},
    {"temperature": 0, "logit_bias": {17: 100.0}},
    {"temperature": 1.0, "min_p": 0.2, "min_tokens": 9, "stop_token_ids": (5, 6)},
    {"temperature": 0, "top_p": 0.5, "logprobs": 2},
]


def test_a_mixed_batch_gives_each_row_what_it_gets_alone(logits):
    rows = [row(**changes) for changes in MIXED]
    together = sample(logits, rows)
    for i, one in enumerate(rows):
        alone = sample(logits[i : i + 1], [one])
        assert together.tokens[i] == alone.tokens[0]
        assert together.logprobs[i] == (alone.logprobs[0] if alone.logprobs else None)
    assert together.faults == []


def test_greedy_rows_take_the_likeliest_and_honour_bias_penalties_and_ends(logits):
    best, second = logits[0].topk(2).indices.tolist()
    one = logits[:1]
    assert sample(one, [row(temperature=0)]).tokens == [best]
    assert sample(one, [row(temperature=0, logit_bias={best: -100})]).tokens == [second]
    assert sample(one, [row(temperature=0, logit_bias={17: 100})]).tokens == [17]
    waiting = {"temperature": 0, "stop_token_ids": (best,), "min_tokens": 2}
    assert sample(one, [row((1, 2, 3), 2, **waiting)]).tokens == [second]
    assert sample(one, [row((1, 2, 3, 4), 2, **waiting)]).tokens == [best]
    shown = [row((best, 2), 2, temperature=0, repetition_penalty=100.0)]
    assert sample(one, shown).tokens == [second]
    assert sample(one, [row((best, 2), 2, temperature=0, presence_penalty=2.0)]).tokens == [best]
    flat = torch.zeros(1, VOCABULARY)
    flat[0, 9] = 1.5
    said = {"temperature": 0, "tokens": (1, 9, 9), "prompt_len": 1}
    assert sample(flat, [row(**said, presence_penalty=1.0)]).tokens == [9]
    assert sample(flat, [row(**said, presence_penalty=1.6)]).tokens == [0]
    assert sample(flat, [row(**said, frequency_penalty=0.8)]).tokens == [0]


def test_the_draw_belongs_to_the_position_of_the_new_token():
    flat = torch.zeros(1, VOCABULARY)
    tokens = [sample(flat, [row([1] * n, 1)]).tokens[0] for n in range(1, 60)]
    assert len(set(tokens)) > 40
    # The same stream after a preemption, of whatever prompt length, draws the same.
    assert [sample(flat, [row([1] * n, n)]).tokens[0] for n in range(1, 60)] == tokens


def test_logprobs_are_of_the_raw_logits(logits):
    changes = {"temperature": 0.5, "logit_bias": {7: 100.0}, "repetition_penalty": 2.0}
    result = sample(logits[:2], [row(temperature=0), row(**changes, logprobs=4)])
    assert result.tokens[1] == 7
    assert result.logprobs[0] is None
    entry = result.logprobs[1]
    expected = logits[1].double().log_softmax(0)
    assert entry.token == 7
    assert entry.logprob == pytest.approx(expected[7].item(), abs=1e-6)
    assert entry.rank == (expected > expected[7]).sum() + 1
    assert [token for token, _ in entry.top] == expected.topk(4).indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(expected.topk(4).values.tolist())


def test_nobody_asking_means_no_logprobs(logits):
    assert sample(logits[:2], [row(), row(temperature=0)]).logprobs == []


def test_a_row_without_numbers_is_named_and_disturbs_nobody(logits):
    rows = [row(**changes) for changes in MIXED]
    healthy = sample(logits, rows)
    broken = logits.clone()
    broken[1] = math.nan
    broken[2, 40] = math.nan
    broken[7, 40] = math.inf
    result = sample(broken, rows)
    assert result.faults == [1, 2, 7]
    assert result.tokens[1] == 0
    assert result.tokens[2] == logits[2].argmax()
    for i in (0, 3, 4, 5, 6):
        assert result.tokens[i] == healthy.tokens[i]
        assert result.logprobs[i] == (healthy.logprobs[i])
    assert result.logprobs[2].logprob == LOWEST


def test_everything_forbidden_is_a_fault():
    ends = tuple(range(VOCABULARY))
    result = sample(torch.zeros(1, VOCABULARY), [row(min_tokens=9, stop_token_ids=ends)])
    assert result == Sampled([0], [], [0])


def test_prompt_entries_speak_of_the_tokens_that_follow(logits):
    asking = row(range(20, 40), 20, prompt_logprobs=1)
    entries = describe_prompt(logits[:4], asking, 5)
    assert [entry.token for entry in entries] == [26, 27, 28, 29]
    expected = logits[2].double().log_softmax(0)
    assert entries[2].logprob == pytest.approx(expected[28].item())
    assert entries[2].top[0][0] == expected.argmax()


def test_impossible_tokens_have_a_finite_logprob():
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    (entry,) = describe(logits, [1], [3])
    assert (entry.logprob, entry.rank) == (LOWEST, 3)
    assert entry.top[2] == (1, LOWEST)
