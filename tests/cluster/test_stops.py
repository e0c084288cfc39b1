"""Stop strings: nothing of one is shown, nothing else is lost, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cluster.text.stops import StopChecker, StopStrings

LETTERS = st.text("ab é😀\n", max_size=30)
STOPS = st.lists(st.text("ab é😀\n", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 6), max_size=30)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """The slow twin: the first end of any stop string, the longest there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - max(map(len, found))], True
    return text, False


def held_back(text: str, stops: list[str]) -> int:
    """The longest end of `text` that begins a stop string."""
    lengths = (k for k in range(len(text), 0, -1) if any(s.startswith(text[-k:]) for s in stops))
    return next(lengths, 0)


@settings(deadline=None)
@given(LETTERS, STOPS, CUTS, st.booleans())
def test_any_chunking_gives_what_the_slow_twin_gives(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    checker = StopChecker(StopStrings(stops), include_stop=include)
    wanted, stopped = expected(text, stops, include)
    shown = fed = ""
    rest = text
    for length in [*cuts, len(text)]:
        piece, rest = rest[:length], rest[length:]
        fed += piece
        shown += checker.feed(piece)
        assert wanted.startswith(shown)
        if not checker.stopped:
            assert len(fed) - len(shown) == held_back(fed, stops)
    shown += checker.flush()
    assert (shown, checker.stopped) == (wanted, stopped)


def test_a_prefix_that_comes_to_nothing_is_flushed() -> None:
    checker = StopChecker(StopStrings(["endZZZ"]))
    assert checker.feed("the end") == "the "
    assert checker.flush() == "end"
    assert not checker.stopped


def test_the_first_complete_stop_wins_and_nothing_follows() -> None:
    checker = StopChecker(StopStrings(["bcde", "c"]))
    assert checker.feed("abc") == "ab"
    assert checker.stopped
    assert checker.feed("more") == ""
    assert checker.flush() == ""


def test_of_two_that_end_together_the_longer_is_cut() -> None:
    checker = StopChecker(StopStrings(["c", "bc"]))
    assert checker.feed("abc") == "a"


def test_the_stop_may_be_included() -> None:
    checker = StopChecker(StopStrings(["bc"]), include_stop=True)
    assert checker.feed("ab") + checker.feed("cd") == "abc"


def test_unchecked_text_neither_stops_nor_begins_a_stop() -> None:
    checker = StopChecker(StopStrings(["ab"]))
    assert checker.pass_unchecked("xaba") == "xaba"
    assert checker.feed("b") == "b"
    assert not checker.stopped
    assert checker.feed("ab") == ""
    assert checker.stopped


@pytest.mark.parametrize("length", [1, 1000])
def test_long_stop_strings_that_nearly_match_cost_one_step_a_character(length: int) -> None:
    steps = 0

    class Counting(StopStrings):
        def step(self, state: int, character: str) -> int:
            nonlocal steps
            steps += 1
            return super().step(state, character)

    stops = Counting(["a" * length + "b"])
    steps = 0
    checker = StopChecker(stops)
    shown = "".join(checker.feed("a") for _ in range(3000))
    assert steps == 3000
    assert shown + checker.flush() == "a" * 3000
