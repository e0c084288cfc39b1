from __future__ import annotations

from array import array
from typing import Any

import pytest

from octavo.scheduler.group import Group
from octavo.scheduler.request import Logprob
from octavo.scheduler.sequence import Sequence
from tests.scheduler.simulation import request


def sequence(size: int = 6, max_tokens: int = 4, **sampling: Any) -> Sequence:
    group = Group(request("r", list(range(size)), max_tokens, **sampling), 1, 0.0, ("", "", ""))
    return group.sequences[0]


def test_what_remains_is_what_is_known_or_will_be_and_was_not_granted() -> None:
    seq = sequence(6, 3)
    assert seq.remaining() == 6
    seq.granted = 6
    assert seq.remaining() == 0
    seq.pending = 1
    assert seq.remaining() == 1
    seq.granted, seq.pending = 7, 2
    assert seq.remaining() == 1
    seq.granted, seq.pending = 8, 3
    assert seq.remaining() == 0  # nothing follows the last token


def test_a_prompt_that_nothing_follows_is_computed_whole() -> None:
    assert sequence(6, 0).remaining() == 6


@pytest.mark.parametrize(("granted", "held"), [(0, True), (7, True), (8, False), (9, False)])
def test_it_is_held_until_its_sibling_was_granted_what_they_share(granted: int, held: bool) -> None:
    first, second = sequence(12), sequence(12)
    assert not second.is_held()
    second.holds = first, 8
    first.row, first.granted = 0, granted
    assert second.is_held() == held
    first.row = None  # it has ended, which takes that it was computed
    assert not second.is_held()


def test_it_is_held_while_its_sibling_is_held() -> None:
    """What the second has of its own was found, but what comes before is yet to be computed."""
    first, second, third = sequence(12), sequence(12), sequence(12)
    first.row, first.granted = 0, 3
    second.row, second.granted, second.holds = 1, 8, (first, 4)
    third.holds = second, 8
    assert third.is_held()
    first.granted = 4
    assert not third.is_held()


def test_a_fork_shares_no_list_with_its_parent() -> None:
    seq = sequence(6)
    seq.table = array("I", [4, 5])
    seq.host_table, seq.row, seq.waits_for = [1], 3, b"name"
    seq.reserved = [9]
    seq.hashes(4)
    twin = seq.fork(2)
    assert (twin.index, twin.row, twin.waits_for) == (2, None, None)
    for name in ("tokens", "table", "host_table", "chain"):
        assert getattr(twin, name) == getattr(seq, name)
        assert getattr(twin, name) is not getattr(seq, name)
    assert twin.group is seq.group and twin.reserved == []


def test_scores_that_are_incomplete_begin_again_with_it() -> None:
    seq = sequence(4, prompt_logprobs=0)
    seq.take_prompt_logprobs([Logprob(1, -1.0, 1)])
    assert seq.wants_prompt_logprobs()
    seq.restart()
    assert seq.prompt_logprobs == [None]
    seq.take_prompt_logprobs([Logprob(token, -1.0, 1) for token in (1, 2, 3)])
    assert not seq.wants_prompt_logprobs()
    seq.restart()
    assert seq.prompt_logprobs is not None and len(seq.prompt_logprobs) == 4


def test_its_blocks_are_named_as_they_fill() -> None:
    seq = sequence(7)
    assert len(seq.hashes(4)) == 1
    first = seq.hashes(4)[0]
    seq.tokens.append(9)
    assert len(seq.hashes(4)) == 2 and seq.hashes(4)[0] == first
