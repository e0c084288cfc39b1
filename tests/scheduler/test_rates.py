from __future__ import annotations

import pytest

from octavo.scheduler.draft import Draft, Flight
from octavo.scheduler.moves import Moves
from octavo.scheduler.plan import StepResult
from octavo.scheduler.rates import (
    FIRST_BYTES_A_SECOND,
    FIRST_SECONDS_A_TOKEN,
    SWAP_FIXED_SECONDS,
    WEIGHT,
    Rates,
)


def observe(
    rates: Rates, counts: list[int], seconds: float, blocks: int = 0, copy: float = 0.0
) -> None:
    """A step that computed `counts` tokens of its rows in `seconds`."""
    draft = Draft(0, sum(counts), sum(count for count in counts if count > 1))
    result = StepResult(0, [], compute_seconds=seconds, copied_blocks=blocks, copy_seconds=copy)
    rates.observe_step(Flight(0, draft, Moves()), result)


def test_guesses_hold_until_something_was_measured() -> None:
    rates = Rates(block_bytes=4_000_000)
    assert rates.recompute(100) == pytest.approx(100 * FIRST_SECONDS_A_TOKEN)
    a_block = 4_000_000 / FIRST_BYTES_A_SECOND
    assert rates.swap(3, 5) == pytest.approx(SWAP_FIXED_SECONDS + 8 * a_block)


def test_the_first_measurement_replaces_the_guess_and_the_next_are_averaged() -> None:
    rates = Rates(1)
    observe(rates, [100], 2.0, blocks=10, copy=1.0)
    assert rates.recompute(1) == pytest.approx(0.02)
    assert rates.swap(1, 0) - rates.swap(0, 0) == pytest.approx(0.1)
    observe(rates, [100], 7.0, blocks=10, copy=6.0)
    assert rates.recompute(1) == pytest.approx(0.02 + WEIGHT * 0.05)
    assert rates.swap(0, 1) - rates.swap(0, 0) == pytest.approx(0.1 + WEIGHT * 0.5)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([64], True),
        ([64, 1, 1], True),
        ([2, 1, 1], True),
        ([2, 1, 1, 1], False),
        ([1] * 8, False),
        ([1], False),
        ([0], False),
        ([], False),
    ],
)
def test_steps_that_mostly_decode_say_nothing_of_prompts(counts: list[int], says: bool) -> None:
    rates = Rates(1)
    observe(rates, counts, 1.0)
    tokens = sum(counts)
    assert rates.seconds_a_token == (1.0 / tokens if says else FIRST_SECONDS_A_TOKEN)


def test_steps_without_times_or_copies_change_nothing() -> None:
    rates = Rates(1000)
    before = rates.swap(1, 1), rates.recompute(1)
    observe(rates, [64], 0.0, blocks=0, copy=1.0)
    observe(rates, [64], 0.0, blocks=5, copy=0.0)
    assert (rates.swap(1, 1), rates.recompute(1)) == before
