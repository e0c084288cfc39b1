"""Several ranks over gloo, each its own process, give what one rank gives."""

from __future__ import annotations

import msgspec
import pytest
import torch

from octavo.scheduler.grammar import Grammar
from octavo.scheduler.plan import (
    Add,
    Append,
    Fork,
    Replace,
    StepPlan,
    StepResult,
    Work,
    decode_result,
    encode,
)
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.config import WorkerConfig
from octavo.workers.parallel import ALONE, Group
from tests.workers.plans import BLOCK_SIZE, NUM_BLOCKS, fork_plans, generation_plans, run_plans
from tests.workers.ranks import execute_plans, lose_a_peer, run_ranks, talk
from tests.workers.test_generation import make_worker, random_prompts

GRAMMAR = Grammar("regex", "([a-z ]{3}[0-9]){9}")
PROMPTS = random_prompts(5, 33, 18)
SAMPLING = [
    SamplingParams(temperature=0, logprobs=1, prompt_logprobs=0),
    SamplingParams(temperature=0, repetition_penalty=1.3, grammar=GRAMMAR, stop_token_ids=(2,)),
    SamplingParams(temperature=0.8, top_p=0.95, seed=11),
]


def plans() -> list[StepPlan]:
    return generation_plans(PROMPTS, 12, chunk=10, sampling=SAMPLING)


def compare(found: list[StepResult], expected: list[StepResult], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        pairs = list(zip(one.logprobs, other.logprobs, strict=True))
        pairs += zip(one.prompt_logprobs.get(0, []), other.prompt_logprobs.get(0, []), strict=True)
        for a, b in pairs:
            assert (a is None) == (b is None)
            if a is not None and b is not None and a.token == b.token:
                assert a.logprob == pytest.approx(b.logprob, abs=tolerance)


@pytest.mark.parametrize(
    ("size", "models"),
    [
        (2, [("llama", 4, True), ("qwen2", 2, False), ("llama-bias", 2, True)]),
        (4, [("llama", 4, False), ("qwen3", 2, True)]),
    ],
)
def test_ranks_together_give_what_one_gives(tiny_model, size, models):
    directories = [str(tiny_model(family, kv_heads, tie)) for family, kv_heads, tie in models]
    configs = [
        WorkerConfig(directory, block_size=BLOCK_SIZE, tensor_parallel_size=size)
        for directory in directories
    ]
    answers = run_ranks(size, execute_plans, configs, [encode(p) for p in plans()], NUM_BLOCKS)
    for silent in answers[1:]:
        assert all(answer is None for run in silent for answer in run)
    for directory, run in zip(directories, answers[0], strict=True):
        found = [decode_result(answer) for answer in run]
        expected = run_plans(make_worker(directory), plans())
        assert [result.tokens for result in found] == [result.tokens for result in expected]
        compare(found, expected, 1e-4)


def shared_plans() -> list[StepPlan]:
    """Samples of one prompt while beams of another are named candidates, then go the same way as
    every row: out to the host, and in again elsewhere."""
    plans = fork_plans(PROMPTS[1], SAMPLING[2], [31, 32], 6)
    beams = SamplingParams(beam_width=2, repetition_penalty=1.2)
    first, last = plans[2], plans[-1]
    plans[2] = msgspec.structs.replace(
        first,
        add=[Add(9, PROMPTS[2], 18, [1, 4, 7, 10, 13, 16], 0, beams)],
        work=[Work(9, 0, 18, True), *first.work],
    )
    plans[3] = msgspec.structs.replace(
        plans[3],
        work=[Work(9, 18, 1, True), *plans[3].work, Work(8, 18, 1, True)],
        fork=[Fork(8, 9, 0)],
        append=[Append(9, 50), Append(8, 60)],
        replace=[Replace(8, 4, 19)],
        copy=[(13, 19)],
        store=[(1, 0), (4, 1), (7, 2), (10, 3), (19, 4)],
    )
    come_back = StepPlan(
        last.step + 1,
        [Work(8, 18, 2, True)],
        drop=[8, 9, 0, 1, 2],
        add=[Add(8, [*PROMPTS[2], 60, 70], 18, [50, 51, 52, 53, 54], 18, beams)],
        swap_in=[(0, 50), (1, 51), (2, 52), (3, 53), (4, 54)],
    )
    return [*plans, come_back]


def test_ranks_share_blocks_and_search_as_one_does(tiny_model):
    directory = str(tiny_model("llama"))
    config = WorkerConfig(directory, block_size=BLOCK_SIZE, swap_space=0.01)
    encoded = [encode(plan) for plan in shared_plans()]
    (run,), (silent,) = run_ranks(2, execute_plans, [config], encoded, NUM_BLOCKS)
    assert not any(silent)
    expected = run_plans(make_worker(directory, swap_space=0.01), shared_plans())
    assert [len(result.candidates) for result in expected] == [0, 0, 1, 2, 0, 0, 1]
    for answer, alone in zip(run, expected, strict=True):
        found = decode_result(answer)
        assert found.tokens == alone.tokens
        for one, other in zip(found.candidates, alone.candidates, strict=True):
            assert [token for token, _ in one] == [token for token, _ in other]
            assert [value for _, value in one] == pytest.approx([v for _, v in other], abs=1e-4)


def test_bfloat16_ranks_stay_close_to_one(tiny_model):
    directory = str(tiny_model("llama"))
    config = WorkerConfig(directory, dtype="bfloat16", block_size=BLOCK_SIZE)
    first = [plan for plan in plans() if plan.step < 4]
    (run,), _ = run_ranks(2, execute_plans, [config], [encode(p) for p in first], NUM_BLOCKS)
    expected = run_plans(make_worker(directory, dtype="bfloat16"), first)
    compare([decode_result(answer) for answer in run], expected, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_collectives(dtype):
    first, second, third = run_ranks(3, talk, dtype)
    assert first == {
        "summed": [6.0] * 3,
        "gathered": [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]],
        "shared": [7, 0],
    }
    assert second == third == first | {"gathered": None}


def test_a_lost_peer_is_an_error_and_not_a_hang():
    assert run_ranks(3, lose_a_peer) == ["RuntimeError", "RuntimeError", "left"]


def test_a_group_of_one_does_nothing():
    alone = Group.join("tcp://nowhere.invalid:1", 0, 1, "cpu")
    assert alone == ALONE
    assert talk(alone, torch.float32) == {
        "summed": [1.0] * 3,
        "gathered": [[0.0], [0.0]],
        "shared": [7, 0],
    }
    alone.close()
