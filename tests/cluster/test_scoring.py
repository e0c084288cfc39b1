"""Logprobs are the model's own, whatever happened to a request: its prompt computed in chunks, or
found in the cache, shared by several samples, thrown out and brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.cluster.client import EngineClient
from octavo.scheduler.config import PreemptionMode
from octavo.scheduler.request import Logprob, Request
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.serving import tiny_engine
from tests.conftest import TinyModel

TOLERANCE = 1e-3
SHARED = [3 + number * 7 % 400 for number in range(48)]
PROMPTS = [[*SHARED, *[100 + prompt * 20 + number for number in range(14)]] for prompt in range(4)]
BASE = SamplingParams(n=2, temperature=1.0, seed=5, max_tokens=40, logprobs=2)
SCORED = BASE.replace(prompt_logprobs=2)

Scores = Callable[[list[int]], Tensor]


@pytest.fixture(scope="module")
def scores(tiny_model: TinyModel) -> Scores:
    """`[tokens, vocabulary]` logprobs of what follows each token, as transformers has them."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)

    @torch.no_grad()
    def score(tokens: list[int]) -> Tensor:
        logprobs: Tensor = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return logprobs

    return score


class Answer:
    """What an engine said of one request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.samples: list[list[Logprob]] = [[] for _ in range(request.sampling.n)]
        self.prompt: list[Logprob | None] | None = None
        self.cached = 0

    async def follow(self, client: EngineClient) -> None:
        async for event in client.generate(self.request):
            assert event.error is None and event.logprobs is not None
            self.samples[event.index] += event.logprobs
            self.cached = max(self.cached, event.cached_tokens)
            if event.prompt_logprobs is not None:
                assert self.prompt is None, "told once"
                self.prompt = event.prompt_logprobs

    def check(self, scores: Scores) -> None:
        prompt = self.request.prompt
        for sample in self.samples:
            ahead = len(prompt) - 1
            expected = scores(prompt + [entry.token for entry in sample])
            agree(sample, expected[ahead:-1])
        if self.request.sampling.prompt_logprobs is None:
            assert self.prompt is None
            return
        assert self.prompt is not None and self.prompt[0] is None
        entries = [entry for entry in self.prompt if entry is not None]
        assert [entry.token for entry in entries] == prompt[1:]
        agree(entries, expected[:ahead])


def agree(entries: list[Logprob], expected: Tensor) -> None:
    assert len(entries) == len(expected)
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=TOLERANCE)
        values = [value for _, value in entry.top]
        assert values == pytest.approx(row.topk(2).values.tolist(), abs=TOLERANCE)
        near = (row - row[entry.token]).abs() < TOLERANCE  # which may change places with it
        above = int((row > row[entry.token]).sum())
        assert abs(entry.rank - 1 - above) < near.sum()


async def ask(client: EngineClient, asked: list[SamplingParams], name: str) -> list[Answer]:
    """Each of the prompts at the same time, as it is asked for."""
    requests = [
        Request(f"{name}-{number}", prompt, sampling)
        for number, (prompt, sampling) in enumerate(zip(PROMPTS, asked, strict=True))
    ]
    answers = [Answer(request) for request in requests]
    await asyncio.gather(*(answer.follow(client) for answer in answers))
    return answers


def tokens(answers: list[Answer]) -> list[list[list[int]]]:
    return [[[entry.token for entry in sample] for sample in each.samples] for each in answers]


def test_in_chunks_from_the_cache_and_with_several_samples(
    tiny_model: TinyModel, scores: Scores
) -> None:
    async def scene() -> None:
        async with tiny_engine(tiny_model(), step_tokens=24)() as client:
            cold = await ask(client, [SCORED] * 4, "cold")
            warm = await ask(client, [SCORED, BASE, BASE, SCORED], "warm")
        assert [answer.cached for answer in cold] == [0] * 4
        assert [answer.cached for answer in warm] == [0, 48, 48, 0], "the scored read no hits"
        assert tokens(cold) == tokens(warm)
        for answer in (*cold, *warm):
            answer.check(scores)

    asyncio.run(scene())


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_of_requests_that_were_preempted(
    tiny_model: TinyModel, scores: Scores, mode: PreemptionMode
) -> None:
    async def scene() -> None:
        small = tiny_engine(tiny_model(), num_blocks=17, step_tokens=40, preemption_mode=mode)
        async with small() as client:
            answers = await ask(client, [SCORED, BASE, SCORED, BASE], "pressed")
            [stats] = client.stats()
        assert stats.measured.preemptions > 0
        for answer in answers:
            answer.check(scores)
        assert all(a != b for a, b in pairwise(tokens(answers)[0])), "samples of their own"

    asyncio.run(scene())
