"""Forks, copies-on-write and beams through `Worker.execute`, on a real model."""

from __future__ import annotations

import msgspec
import pytest
import torch

from octavo.scheduler.plan import Add, Append, Fork, Replace, StepPlan, Work
from octavo.scheduler.sampling import SamplingParams
from tests.workers.plans import GREEDY, fork_plans, generation_plans, run_plans, tokens_by_row
from tests.workers.test_generation import make_worker, random_prompts

SEEDS = [21, 22, 23]
NEW_TOKENS = 14
FULL, PARTIAL = random_prompts(16, 22)  # of blocks of 4


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("llama")


def apart(directory, prompt, sampling, fork_at):
    """What each row generates when nothing is shared."""
    first = generation_plans([prompt], NEW_TOKENS, sampling=[sampling])
    parent = tokens_by_row(first, run_plans(make_worker(directory), first))[0]
    start = prompt + parent[:fork_at]
    plans = generation_plans(
        [start] * len(SEEDS),
        NEW_TOKENS - fork_at,
        sampling=[msgspec.structs.replace(sampling, seed=seed) for seed in SEEDS],
        prompt_lens=[len(prompt)] * len(SEEDS),
    )
    children = tokens_by_row(plans, run_plans(make_worker(directory), plans))
    return {0: parent} | {row + 1: tokens for row, tokens in children.items()}


@pytest.mark.parametrize("fork_at", [0, 5])
@pytest.mark.parametrize("prompt", [FULL, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize(
    "penalties", [{}, {"frequency_penalty": 1.5, "repetition_penalty": 1.2}], ids=["", "penalties"]
)
def test_forks_give_what_requests_of_their_own_give(directory, fork_at, prompt, penalties):
    sampling = SamplingParams(temperature=1.0, seed=20, logprobs=0, **penalties)
    plans = fork_plans(prompt, sampling, SEEDS, NEW_TOKENS, fork_at=fork_at)
    results = run_plans(make_worker(directory), plans)
    expected = apart(directory, prompt, sampling, fork_at)
    assert tokens_by_row(plans, results) == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 4
    for result in results:
        assert [entry.token for entry in result.logprobs] == result.tokens


def test_forks_that_write_into_a_shared_block_would_be_seen(directory):
    sampling = SamplingParams(temperature=1.0, seed=20)
    plans = [
        msgspec.structs.replace(plan, copy=[])
        for plan in fork_plans(PARTIAL, sampling, SEEDS, NEW_TOKENS)
    ]
    found = tokens_by_row(plans, run_plans(make_worker(directory), plans))
    expected = apart(directory, PARTIAL, sampling, 0)
    assert found[0] == expected[0]
    assert all(found[row] != expected[row] for row in (1, 2, 3))


def test_forks_do_not_ask_for_the_prompt_again(directory):
    sampling = SamplingParams(temperature=1.0, seed=20, prompt_logprobs=0)
    plans = fork_plans(PARTIAL, sampling, SEEDS, 2)
    first, second = run_plans(make_worker(directory), plans)
    assert list(first.prompt_logprobs) == [0]
    assert [entry.token for entry in first.prompt_logprobs[0]] == PARTIAL[1:]
    assert second.prompt_logprobs == {}


def test_a_table_is_followed_where_nothing_is_computed(directory):
    plans = generation_plans([FULL[:6], FULL[:6]], 3)
    worker = make_worker(directory)
    tokens = [run_plans(worker, plans[:1])[0].tokens]
    moved = {grow.row: grow.blocks[1] for grow in plans[0].grow}
    # Row 0's last block moves in a step of its own; row 1 is then free to spoil where it was.
    replace = StepPlan(1, [], replace=[Replace(0, 1, 77)], copy=[(moved[0], 77)])
    spoil = StepPlan(2, [], copy=[(moved[1], moved[0]), (99, moved[0])])
    later = [msgspec.structs.replace(plan, step=plan.step + 2) for plan in plans[1:]]
    tokens += [result.tokens for result in run_plans(worker, [replace, spoil, *later])[2:]]
    assert tokens == [result.tokens for result in run_plans(make_worker(directory), plans)]


@pytest.fixture(scope="module")
def logprobs(directory):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def after(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)

    return after


def check_candidates(found, expected, count):
    values, tokens = expected.topk(count)
    assert [token for token, _ in found] == tokens.tolist()
    assert [logprob for _, logprob in found] == pytest.approx(values.tolist(), abs=1e-4)


def test_beams_are_named_candidates_while_other_rows_go_on(directory, logprobs):
    beams = SamplingParams(beam_width=3, stop_token_ids=(2, 7))
    worker = make_worker(directory)
    greedy = generation_plans([FULL], 3)
    expected = tokens_by_row(greedy, run_plans(make_worker(directory), greedy))[0]
    first = StepPlan(
        0,
        [Work(1, 0, 22, True), Work(0, 0, 16, True)],
        add=[
            Add(0, FULL, 16, list(range(1, 8)), 0, GREEDY),
            Add(1, PARTIAL, 22, list(range(10, 17)), 0, beams),
        ],
    )
    (result,) = run_plans(worker, [first])
    assert result.tokens == expected[:1]
    (candidates,) = result.candidates
    check_candidates(candidates, logprobs(PARTIAL), 9)
    chosen = [candidates[i][0] for i in (0, 3, 5)]
    second = StepPlan(
        1,
        [Work(1, 22, 1, True), Work(0, 16, 1, True), Work(2, 22, 1, True), Work(5, 22, 1, True)],
        fork=[Fork(2, 1, 0), Fork(5, 1, 0)],
        append=[Append(row, token) for row, token in zip((1, 2, 5), chosen, strict=True)],
        copy=[(15, 20), (15, 21)],
        replace=[Replace(2, 5, 20), Replace(5, 5, 21)],
    )
    (result,) = run_plans(worker, [second])
    assert result.tokens == expected[1:2]
    for found, token in zip(result.candidates, chosen, strict=True):
        check_candidates(found, logprobs([*PARTIAL, token]), 9)
    # Nothing was appended to the beams: the scheduler says with what they go on, if they do.
    third = StepPlan(
        2, [Work(5, 23, 1, True), Work(0, 17, 1, True)], drop=[1, 2], append=[Append(5, 40)]
    )
    (result,) = run_plans(worker, [third])
    assert result.tokens == expected[2:]
    check_candidates(result.candidates[0], logprobs([*PARTIAL, chosen[2], 40]), 9)
