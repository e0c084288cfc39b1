from __future__ import annotations

import pytest

from octavo.scheduler.errors import OutOfStep
from octavo.scheduler.mirror import Mirror
from octavo.scheduler.plan import Add, Grow, StepPlan, Work
from octavo.scheduler.sampling import SamplingParams


def birth(row: int, tokens: list[int], blocks: list[int], computed: int = 0) -> Add:
    return Add(row, tokens, len(tokens), blocks, computed, SamplingParams(seed=0))


def test_rows_live_through_add_grow_work_and_drop() -> None:
    mirror = Mirror(4)
    first = StepPlan(0, [Work(2, 0, 4, True)], add=[birth(2, [5, 6, 7, 8], [9])])
    mirror.apply(first)
    mirror.advance(first, [11])
    assert mirror.rows[2].tokens == [5, 6, 7, 8, 11] and mirror.rows[2].computed == 4
    second = StepPlan(1, [Work(2, 4, 1, True)], grow=[Grow(2, [3])])
    mirror.apply(second)
    assert mirror.rows[2].table == [9, 3]
    mirror.advance(second, [12])
    mirror.apply(StepPlan(2, [], drop=[2], add=[birth(2, [1], [4])]))
    assert mirror.rows[2].tokens == [1]


def test_a_gap_raises_and_touches_nothing_and_a_reset_mends_it() -> None:
    mirror = Mirror(4)
    mirror.apply(StepPlan(0, [], add=[birth(0, [1], [1])]))
    for step in (0, 2):
        with pytest.raises(OutOfStep):
            mirror.apply(StepPlan(step, [], drop=[0]))
    assert 0 in mirror.rows
    mirror.apply(StepPlan(7, [], add=[birth(1, [1, 2], [2])], reset=True))
    assert list(mirror.rows) == [1]
    mirror.apply(StepPlan(8, []))


@pytest.mark.parametrize("work", [Work(0, 1, 1, False), Work(0, 0, 5, False), Work(0, 0, 3, False)])
def test_work_that_does_not_fit_its_row_is_caught(work: Work) -> None:
    mirror = Mirror(4)
    with pytest.raises(AssertionError):
        mirror.apply(StepPlan(0, [work], add=[birth(0, [1, 2], [1])]))
