"""The embedded model's greedy answers equal transformers', whatever the engine goes through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cluster.checkpoints.embedded import prepare
from octavo.cluster.offline.executors import _ray
from octavo.cluster.text.tokens import Tokenizer
from tests.e2e.exactness import PROMPTS, Reference, assert_identical, greedy

LENGTH = 64
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


@pytest.fixture(scope="module")
def model_path() -> Path:
    return prepare()


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    return [Tokenizer.load(model_path).encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def references(model_path: Path, prompts: list[list[int]]) -> list[Reference]:
    return greedy(model_path, prompts, LENGTH)


@pytest.fixture
def open_llm() -> Iterator[Any]:
    opened: list[LLM] = []

    def open_one(model: Path, **settings: Any) -> LLM:
        defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}
        opened.append(LLM(model, **(defaults | settings)))
        return opened[-1]

    yield open_one
    for llm in opened:
        llm.shutdown()


def answers(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_in_one_batch_and_again_from_the_prefix_cache(
    open_llm: Any, model_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    llm = open_llm(model_path, block_size=4)
    assert_identical(answers(llm, prompts), references)
    again = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert sum(output.num_cached_tokens for output in again) > len(prompts)
    assert_identical([output.outputs[0].token_ids for output in again], references)


def test_with_prompts_computed_in_chunks(
    open_llm: Any, model_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    llm = open_llm(model_path, max_num_batched_tokens=64)
    assert_identical(answers(llm, prompts), references)


def test_with_a_pool_so_small_that_requests_are_preempted(
    open_llm: Any, model_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    llm = open_llm(model_path, num_gpu_blocks_override=48)
    assert_identical(answers(llm, prompts), references)
    assert llm.stats().measured.preemptions > 0


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """A Ray of this program, which its engines use instead of starting one each."""
    with _ray(ranks=4):
        yield


@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("degree", [2, 3])
def test_over_tensor_parallel_ray_actors(
    open_llm: Any,
    model_path: Path,
    prompts: list[list[int]],
    references: list[Reference],
    degree: int,
) -> None:
    path = prepare(pad_kv_heads=4) if degree == 2 else model_path
    llm = open_llm(path, tensor_parallel_size=degree, executor="ray", num_threads=1)
    assert_identical(answers(llm, prompts), references)


@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_tiny_model_over_tensor_parallel_ray_actors(
    open_llm: Any, tiny_model: Any, degree: int
) -> None:
    path = tiny_model("llama", kv_heads=2, seed=1)  # four ranks share two KV heads
    prompts = [[1, 72, 105, 300, 12, 44, 501, 9], list(range(40, 90)), [7] * 17]
    llm = open_llm(path, tensor_parallel_size=degree, executor="ray", num_threads=1)
    assert_identical(answers(llm, prompts), greedy(path, prompts, LENGTH))
