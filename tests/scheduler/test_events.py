"""The events of a step, most of which lie in columns."""

from __future__ import annotations

import msgspec
import pytest

from octavo.scheduler.events import StepEvents
from octavo.scheduler.request import Finish, TokenEvent


def test_all_of_them_are_there_one_by_one_and_after_a_journey() -> None:
    ended = TokenEvent("c", [], Finish.ERROR, error="x")
    events = StepEvents([ended], ["a", "b"], [5, 6])
    assert list(events) == [TokenEvent("a", [5]), TokenEvent("b", [6]), ended]
    assert len(events) == 3 and not StepEvents()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=StepEvents) == events


def test_columns_of_two_lengths_are_refused() -> None:
    raw = msgspec.msgpack.encode(([], ["a", "b"], [5]))
    with pytest.raises(msgspec.ValidationError, match="not as many"):
        msgspec.msgpack.decode(raw, type=StepEvents)
