from __future__ import annotations

import pytest

from octavo.scheduler.errors import OutOfStep
from octavo.scheduler.mirror import Mirror
from octavo.scheduler.plan import Add, Append, Fork, Grow, Replace, StepPlan, Work
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


def test_a_fork_is_a_row_of_its_own_with_another_seed() -> None:
    mirror = Mirror(4)
    plan = StepPlan(
        0, [Work(0, 0, 6, True), Work(1, 6, 0, True)], add=[birth(0, [1, 2, 3, 4, 5, 6], [7, 8])],
        fork=[Fork(1, 0, 99)],
    )  # fmt: skip
    mirror.apply(plan)
    mirror.advance(plan, [50, 60])
    one, two = mirror.rows[0], mirror.rows[1]
    assert one.tokens == [1, 2, 3, 4, 5, 6, 50] and two.tokens == [1, 2, 3, 4, 5, 6, 60]
    assert one.computed == two.computed == 6 and one.prompt_len == two.prompt_len == 6
    assert (one.sampling.seed, two.sampling.seed) == (0, 99)
    mirror.apply(
        StepPlan(
            1,
            [Work(0, 6, 1, True), Work(1, 6, 1, True)],
            replace=[Replace(1, 1, 9)],
            grow=[Grow(0, [3])],
        )  # fmt: skip
    )
    assert one.table == [7, 8, 3] and two.table == [7, 9]


def test_rows_change_in_the_order_drop_add_fork_append_grow_replace() -> None:
    mirror = Mirror(4)
    mirror.apply(StepPlan(0, [], add=[birth(0, [1], [5]), birth(1, [2], [6])]))
    mirror.apply(
        StepPlan(
            1,
            [],
            drop=[0],
            add=[birth(0, [3], [7])],
            fork=[Fork(2, 0, 1)],
            append=[Append(0, 8), Append(2, 9)],
            grow=[Grow(2, [4])],
            replace=[Replace(2, 1, 3)],
        )  # fmt: skip
    )
    assert [mirror.rows[row].tokens for row in range(3)] == [[3, 8], [2], [3, 9]]
    assert [mirror.rows[row].table for row in range(3)] == [[7], [6], [7, 3]]


def test_nothing_is_appended_to_beams_but_what_the_scheduler_says() -> None:
    mirror = Mirror(4)
    beam = Add(0, [1, 2], 2, [5], 0, SamplingParams(seed=0, beam_width=2))
    plan = StepPlan(0, [Work(0, 0, 2, True), Work(1, 0, 1, True)], add=[beam, birth(1, [4], [6])])
    mirror.apply(plan)
    mirror.advance(plan, [70])
    assert mirror.rows[0].tokens == [1, 2] and mirror.rows[1].tokens == [4, 70]
    mirror.apply(StepPlan(1, [Work(0, 2, 1, True)], append=[Append(0, 33)]))
    assert mirror.rows[0].tokens == [1, 2, 33]


def test_a_row_is_not_born_twice() -> None:
    mirror = Mirror(4)
    mirror.apply(StepPlan(0, [], add=[birth(0, [1], [5]), birth(1, [1], [5])]))
    with pytest.raises(AssertionError, match="row 1 is born twice"):
        mirror.apply(StepPlan(1, [], fork=[Fork(1, 0, 3)]))


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
