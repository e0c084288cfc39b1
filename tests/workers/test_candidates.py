"""What beams may go on with, against torch's and transformers' own computation."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from octavo.kernels.select import select
from octavo.scheduler.mirror import Row
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.candidates import name_candidates
from octavo.workers.sampler import Sampler

VOCABULARY = 5000
TOKENS = [4, 9, 4, 17, 300, 9]
PROMPT_LEN = 3


def search(logits, *settings):
    rows = {
        number: Row(list(TOKENS), PROMPT_LEN, [], 0, SamplingParams(beam_width=2, **changes))
        for number, changes in enumerate(settings)
    }
    return Sampler(select(torch.device("cpu"))).search(logits.clone(), range(len(rows)), rows)


@pytest.fixture
def logits():
    return torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(8)) * 4


SETTINGS = [
    {},
    {"repetition_penalty": 1.4},
    {"stop_token_ids": (4, 9, 11), "min_tokens": 9},
    {"logit_bias": {17: 50.0, 300: 60.0}},
    {"logit_bias": {17: 50.0}, "repetition_penalty": 3, "stop_token_ids": (9,), "min_tokens": 4},
]


def test_scores_are_those_of_transformers(logits):
    likely = logits.topk(4).indices
    logits[:, TOKENS] += logits[0, likely[0, 0]]  # so that what is changed decides
    named = search(logits, *SETTINGS)
    scores = logits.log_softmax(-1)
    for i, setting in enumerate(SETTINGS):
        ids = torch.tensor([TOKENS])
        processors = LogitsProcessorList()
        if bias := setting.get("logit_bias"):
            processors.append(SequenceBiasLogitsProcessor({(k,): v for k, v in bias.items()}))
        if penalty := setting.get("repetition_penalty"):
            processors.append(RepetitionPenaltyLogitsProcessor(float(penalty)))
        if ends := setting.get("stop_token_ids"):
            processors.append(
                MinNewTokensLengthLogitsProcessor(PROMPT_LEN, setting["min_tokens"], list(ends))
            )
        count = SamplingParams(beam_width=2, **setting).beam_candidates
        expected = processors(ids, scores[i : i + 1].clone())[0].topk(count)
        found_tokens, found_scores = zip(*named.candidates[i], strict=True)
        assert list(found_tokens) == expected.indices.tolist()
        assert list(found_scores) == expected.values.tolist()  # the very bits
    assert named.faults == []


def test_penalties_of_the_output_count_what_was_generated(logits):
    scores = logits.log_softmax(-1)[0]
    for token, count in ((17, 1), (300, 1), (9, 1)):
        scores[token] -= 2 * count + 1.5
    (found,) = search(logits[:1], {"frequency_penalty": 2, "presence_penalty": 1.5}).candidates
    assert [token for token, _ in found] == scores.topk(4).indices.tolist()


def test_company_changes_nothing():
    """Also where a lone row is long enough for torch to divide it among threads."""
    logits = torch.randn(6, 40_000, generator=torch.Generator().manual_seed(1)) * 3
    settings = [{}, {"repetition_penalty": 1.1}, {}, {"stop_token_ids": (1, 2, 3)}, {}, {}]
    together = search(logits, *settings).candidates
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            alone = [
                search(logits[i : i + 1], setting).candidates[0]
                for i, setting in enumerate(settings)
            ]
            assert alone == together
    finally:
        torch.set_num_threads(threads)


def test_lower_ids_come_first_among_equals():
    scores = torch.full((3, 700), -5.0)
    scores[0, [600, 3, 77]] = torch.tensor([-1.0, -2.0, -1.0])
    scores[1] = torch.arange(700).neg()
    first, second, third = name_candidates(scores, [6, 3, 4])
    assert [token for token, _ in first] == [77, 600, 3, 0, 1, 2]
    assert second == [(0, 0.0), (1, -1.0), (2, -2.0)]
    assert third == [(token, -5.0) for token in range(4)]


def test_a_small_vocabulary_is_named_whole():
    (found,) = name_candidates(torch.tensor([[-3.0, -math.inf, -1.0]]), [8])
    assert found == [(2, -1.0), (0, -3.0), (1, -math.inf)]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_faulty_row_is_named_and_the_others_are_not_disturbed(logits, wrong):
    healthy = search(logits[:3], {}, {}, {})
    logits[1, 123] = wrong
    named = search(logits[:3], {}, {}, {})
    assert named.faults == [1]
    assert named.candidates == [healthy.candidates[0], [], healthy.candidates[2]]
