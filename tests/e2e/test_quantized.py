"""The embedded model with int8 weights writes and scores text nearly as it does without."""

from __future__ import annotations

import math

import pytest

from octavo import LLM, SamplingParams
from octavo.cluster.checkpoints.embedded import prepare
from tests.e2e.exactness import PROMPTS

LENGTH = 24
WRITE = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
READ = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
LOSS = 0.05  # nats a token by which the model's own text may become less likely
AGREED = 0.95  # of its tokens must still be the likeliest ones


def write(llm: LLM) -> list[list[int]]:
    """Greedy answers, each behind its prompt."""
    outputs = llm.generate(PROMPTS, WRITE, use_tqdm=False)
    return [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs]


def score(llm: LLM, texts: list[list[int]]) -> list[tuple[float, int]]:
    """Log-probability and rank of every token of the answers."""
    found = []
    for text, output in zip(texts, llm.generate(texts, READ, use_tqdm=False), strict=True):
        assert output.prompt_logprobs is not None
        for token, entry in zip(text[-LENGTH:], output.prompt_logprobs[-LENGTH:], strict=True):
            assert entry is not None
            found.append((entry[token].logprob, entry[token].rank))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_answers_and_scores_stay_close(dtype: str) -> None:
    model = prepare()
    with LLM(model, dtype=dtype, max_model_len=256) as llm:
        texts = write(llm)
        exact = score(llm, texts)
    with LLM(model, dtype=dtype, max_model_len=256, quantization="int8") as llm:
        again = write(llm)
        found = score(llm, texts)
    assert exact != found
    loss = math.fsum(a - b for (a, _), (b, _) in zip(exact, found, strict=True)) / len(exact)
    assert abs(loss) < LOSS
    assert sum(rank == 1 for _, rank in found) >= AGREED * len(found)
    same = sum(a[: 4 - LENGTH] == b[: 4 - LENGTH] for a, b in zip(texts, again, strict=True))
    assert same >= 0.7 * len(texts)  # in the first four tokens of an answer
