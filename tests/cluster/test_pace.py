from __future__ import annotations

import pytest

from octavo.cluster.pace import EARLY, LEAST_SECONDS, Pace


def test_a_size_that_was_never_seen_is_not_held() -> None:
    pace = Pace()
    assert pace.hold(16) == 0
    pace.observe(16, 0.1)
    assert pace.hold(512) == 0


def test_the_next_plan_is_made_shortly_before_the_step_ends() -> None:
    pace = Pace()
    pace.observe(16, 0.1)
    assert pace.hold(16) == pytest.approx(0.1 * (1 - EARLY) - LEAST_SECONDS)
    assert pace.hold(31) == pace.hold(16) and pace.hold(32) == 0


def test_it_follows_what_steps_take_now() -> None:
    pace = Pace()
    pace.observe(1, 1.0)
    for _ in range(30):
        pace.observe(1, 0.02)
    assert pace.hold(1) == pytest.approx(0.02 * (1 - EARLY) - LEAST_SECONDS, rel=0.01)


def test_tiny_steps_are_not_held() -> None:
    pace = Pace()
    pace.observe(1, 0.001)
    assert pace.hold(1) == 0
