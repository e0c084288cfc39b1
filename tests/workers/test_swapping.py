"""Rows whose blocks go to the host and come back, with copies made as late as they may be."""

from __future__ import annotations

import pytest

from octavo.scheduler.plan import Add, Grow, StepPlan, Work
from tests.workers.late import Impatient, Late, Overwriting
from tests.workers.plans import GREEDY, generation_plans, run_plans, tokens_by_row
from tests.workers.test_generation import make_worker, random_prompts

PROMPT, OTHER = random_prompts(21, 24)
FIRST_HOME, SECOND_HOME = list(range(10, 16)), list(range(40, 46))


@pytest.fixture
def make_swapping(tiny_model):
    """A worker whose copies are made by `kind`; None leaves what it has."""
    made = []

    def make(kind):
        worker = make_worker(tiny_model("llama"), swap_space=0.01)
        if kind is not None:
            tiers = worker._tiers
            worker._tiers = kind(worker._cache, tiers._host_blocks, worker.kernels)
            made.append(worker._tiers)
        return worker

    yield make
    for tiers in made:
        tiers.finish()


@pytest.fixture(scope="module")
def undisturbed(tiny_model):
    plans = generation_plans([PROMPT, OTHER], 12)
    return tokens_by_row(plans, run_plans(make_worker(tiny_model("llama")), plans))


def disturbed(worker):
    """Row 0's answer when its full blocks are written behind, and the rest leaves when another row
    takes its place, from where it comes back to other blocks. The other row's first token too."""
    step0 = StepPlan(
        0,
        [Work(0, 0, 21, True)],
        add=[Add(0, PROMPT, 21, FIRST_HOME, 0, GREEDY)],
        store=[(block, place) for place, block in enumerate(FIRST_HOME[:5])],
    )
    step1 = StepPlan(1, [Work(0, 21, 1, True)])
    step2 = StepPlan(
        2,
        [Work(1, 0, 24, True)],
        drop=[0],
        add=[Add(1, OTHER, 24, FIRST_HOME[::-1], 0, GREEDY)],
        swap_out=[(FIRST_HOME[5], 5)],
    )
    results = run_plans(worker, [step0, step1, step2])
    tokens = PROMPT + results[0].tokens + results[1].tokens
    step3 = StepPlan(
        3,
        [Work(0, 22, 1, True)],
        drop=[1],
        add=[Add(0, tokens, 21, SECOND_HOME, 22, GREEDY)],
        swap_in=[(place, block) for place, block in enumerate(SECOND_HOME)],
    )
    more = [
        StepPlan(step, [Work(0, 19 + step, 1, True)], grow=[Grow(0, [step])])
        for step in range(4, 13)
    ]
    results += run_plans(worker, [step3, *more])
    answer = [token for result in results[:2] + results[3:] for token in result.tokens]
    copied = sum(result.copied_blocks for result in results)
    return answer, results[2].tokens, copied


@pytest.mark.parametrize("kind", [None, Late])
def test_a_swapped_row_goes_on_as_if_nothing_had_been(make_swapping, undisturbed, kind):
    answer, other, copied = disturbed(make_swapping(kind))
    assert answer == undisturbed[0]
    assert other == undisturbed[1][:1]
    assert copied == 12


@pytest.mark.parametrize("kind", [Overwriting, Impatient])
def test_a_missing_fence_would_be_seen(make_swapping, undisturbed, kind):
    assert disturbed(make_swapping(kind))[0] != undisturbed[0]


def test_steps_beside_a_transfer_do_not_wait(make_swapping):
    worker = make_swapping(Late)
    store = StepPlan(
        0,
        [Work(0, 0, 21, True)],
        add=[Add(0, PROMPT, 21, FIRST_HOME, 0, GREEDY)],
        store=[(block, place) for place, block in enumerate(FIRST_HOME[:5])],
    )
    results = run_plans(worker, [store, *(StepPlan(s, [Work(0, 20 + s, 1, True)]) for s in (1, 2))])
    assert worker._tiers.waits == []
    assert [result.copied_blocks for result in results] == [0, 0, 0]
    worker._tiers.finish()
    (result,) = run_plans(worker, [StepPlan(3, [Work(0, 23, 1, True)])])
    assert result.copied_blocks == 5
    assert result.copy_seconds > 0
