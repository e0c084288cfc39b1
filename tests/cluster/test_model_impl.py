"""The same checkpoint by either definition, through the offline API."""

from __future__ import annotations

import pytest

from octavo.cluster.offline.llm import LLM
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.sampling import SamplingParams
from tests.conftest import TinyModel

PROMPTS = [[7, 8, 9], [100, 101, 102, 103, 104], [50] * 40]


def test_both_definitions_say_the_same(tiny_model: TinyModel) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    answers = []
    for model_impl in ("auto", "transformers"):
        with LLM(
            tiny_model("qwen3", kv_heads=2),
            model_impl=model_impl,
            num_gpu_blocks_override=64,
            num_threads=1,
            device="cpu",
        ) as llm:
            outputs = llm.generate([*PROMPTS, PROMPTS[2]], greedy)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


def test_an_unknown_definition_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(InvalidRequest, match="model_impl must be one of auto, octavo"):
        LLM(tiny_model(), model_impl="vllm", device="cpu")
