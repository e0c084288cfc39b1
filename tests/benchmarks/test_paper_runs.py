"""The search for the highest rate, and steps that compute prompts apart."""

from __future__ import annotations

import pytest

from benchmarks.paper_runs import (
    FINE,
    OPT_13B,
    is_sustained,
    repeated,
    sustained,
    unmixed,
    without_fragments,
)
from octavo.scheduler.plan import Work

LENGTHS = [(100, 200), (400, 20), (30, 90)]


@pytest.fixture
def jobs():
    return repeated(LENGTHS, 20.0)


@pytest.mark.parametrize("bounds", [(1.0, 12.0), (4.0, 9.0)])
def test_a_rate_that_is_found_is_sustained_and_one_above_is_not(jobs, bounds):
    setup = OPT_13B.setup("max", grain=16)
    rate = sustained(setup, jobs, *bounds)
    assert bounds[0] <= rate <= bounds[1]
    assert is_sustained(setup, jobs(rate))
    assert not is_sustained(setup, jobs(rate * FINE))


def test_a_smaller_pool_sustains_less_and_so_does_a_tighter_limit(jobs):
    setup = OPT_13B.setup("max", grain=16)
    whole = sustained(setup, jobs, 2.0, 9.0)
    assert sustained(without_fragments(setup), jobs, 2.0, 9.0) < whole
    assert sustained(setup, jobs, 2.0, 9.0, 0.1) < whole


def test_where_not_even_the_lowest_rate_is_sustained_there_is_none(jobs):
    assert sustained(OPT_13B.setup("max", grain=16), jobs, 200.0, 400.0) == 0


@pytest.mark.parametrize("grain", [1, 4])
def test_prompts_apart_take_a_step_of_their_own(grain):
    mixed = OPT_13B.setup(grain=grain)
    apart, one = unmixed(mixed).cost(), OPT_13B.setup().cost()
    decode = [Work(row, 64 // grain, 1, True) for row in range(8)]
    prompt = Work(9, 0, 160 // grain, True)
    alone = one.compute([Work(9, 0, 160, True)])
    assert apart.compute([prompt]) == pytest.approx(alone)
    assert apart.compute(decode) == pytest.approx(mixed.cost().compute(decode))
    both = apart.compute([*decode, prompt])
    assert both == pytest.approx(alone + mixed.cost().compute(decode))
    assert unmixed(mixed).changed(ranks=2).cost().compute([prompt]) < alone
