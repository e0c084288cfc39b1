"""bfloat16 moves the embedded model's numbers within bounds, its answers only at near ties."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.cluster.checkpoints.embedded import prepare
from octavo.cluster.text.tokens import Tokenizer
from tests.e2e.exactness import PROMPTS, Reference, assert_identical, greedy

LENGTH = 32
# Nats by which a logprob may differ from that in float32. transformers' own bfloat16 differs as
# much (0.027 in the mean): 8 bits of every activation, through thirty layers.
MEAN, MOST = 0.045, 0.8
TIE = 0.5  # a lead in logits that two ways of rounding may turn over


@pytest.fixture(scope="module")
def model_path() -> Path:
    return prepare()


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    return [Tokenizer.load(model_path).encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def references(model_path: Path, prompts: list[list[int]]) -> list[Reference]:
    return greedy(model_path, prompts, LENGTH, torch.bfloat16)


def scores(llm: LLM, texts: list[list[int]]) -> list[list[float]]:
    """The logprob of each token of each text but its first."""
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    found = []
    for output in llm.generate(texts, asked, use_tqdm=False):
        assert output.prompt_logprobs is not None
        entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        found.append([entry[token].logprob for token, entry in entries if entry is not None])
    return found


def test_answers_equal_transformers_wherever_one_token_leads_clearly(
    model_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    with LLM(model_path, dtype="bfloat16", max_model_len=256) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert_identical(answers, references, TIE)
    same = sum(
        answer == reference.tokens for answer, reference in zip(answers, references, strict=True)
    )
    clear = sum(min(reference.margins) >= TIE for reference in references)
    assert same >= max(clear, 1)


def test_logprobs_are_near_those_of_float32(
    model_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    texts = [
        prompt + reference.tokens for prompt, reference in zip(prompts, references, strict=True)
    ]
    with LLM(model_path, dtype="float32", max_model_len=256) as llm:
        exact = scores(llm, texts)
    with LLM(model_path, dtype="bfloat16", max_model_len=256) as llm:
        rounded = scores(llm, texts)
    apart = torch.tensor(sum(rounded, [])) - torch.tensor(sum(exact, []))
    assert apart.abs().mean() < MEAN
    assert apart.abs().max() < MOST
    assert apart.abs().max() > 0  # they are two dtypes
