"""Gemma-3-270M, whose layers see a window of 512 tokens but for every sixth, beside transformers.

Not part of `make test`, but `make test-models`: a download of 240 MB, 2 GB of disk, some minutes.
"""

from __future__ import annotations

import pytest
import torch

from octavo.cluster.offline.llm import LLM
from octavo.scheduler.sampling import SamplingParams
from tests.e2e import gemma3

NEW_TOKENS = 24
PROMPTS = [
    "The capital of France is",
    "An octavo is a sheet of paper that",
    " ".join(f"Line {i}: the printer folds sheet {i} three times." for i in range(50)),
    " ".join(f"{i} times {i} is {i * i}." for i in range(1, 80)),
]


@pytest.fixture(scope="module")
def directory():
    return gemma3.prepare()


@pytest.mark.timeout(1800)
def test_greedy_tokens_are_those_of_transformers(directory):
    """Four prompts side by side, the longer ones in chunks and beyond the window; then once more,
    their blocks being known, in steps as large as they come."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    answers = []
    for chunk in (100, 2048):
        with LLM(
            str(directory),
            device="cpu",
            dtype="float32",
            max_model_len=2048,
            max_num_batched_tokens=chunk,
            num_gpu_blocks_override=256,
        ) as llm:
            for _ in range(2):
                outputs = llm.generate(PROMPTS, greedy)
                answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[1:] == answers[:1] * 3

    tokenizer = AutoTokenizer.from_pretrained(directory)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    window, beyond = reference.config.sliding_window, 0
    for prompt, answer in zip(PROMPTS, answers[0], strict=True):
        ids = tokenizer(prompt).input_ids
        beyond += len(ids) > window
        with torch.inference_mode():
            logits = reference(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
        first, second = logits.topk(2).values.unbind(1)
        print(
            f"{len(ids)} tokens, then {tokenizer.decode(answer)!r}; the likeliest token is ahead "
            f"by {float((first - second).min()):.4f} or more"
        )
        assert logits.argmax(1).tolist() == list(answer)
    assert window == 512 and beyond == 2
