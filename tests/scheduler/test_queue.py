from __future__ import annotations

import pytest

from octavo.scheduler.group import Group
from octavo.scheduler.queue import WaitingQueue
from tests.scheduler.simulation import request


def group(number: int, *, priority: int = 0, preemptions: int = 0) -> Group:
    item = Group(request(str(number), [1], 1, priority=priority), number, 0.0, ())
    item.preemptions = preemptions
    return item


def test_priority_then_the_preempted_then_arrival() -> None:
    queue = WaitingQueue()
    groups = [
        group(1), group(2, preemptions=1), group(3), group(4, preemptions=3),
        group(5, priority=-1), group(6, priority=1, preemptions=9),
    ]  # fmt: skip
    for item in reversed(groups):
        queue.push(item)
    assert [item.number for item in queue] == [5, 2, 4, 1, 3, 6]
    assert len(queue) == 6


def test_any_can_be_taken_out() -> None:
    queue = WaitingQueue()
    groups = [group(number) for number in range(5)]
    for item in groups:
        queue.push(item)
    queue.remove(groups[2])
    groups[0].running = groups[3].running = True
    queue.drop_admitted(among=3)
    assert [item.number for item in queue] == [1, 4]


def test_one_that_is_not_there_is_noticed() -> None:
    queue = WaitingQueue()
    queue.push(group(1))
    with pytest.raises(AssertionError):
        queue.remove(group(1))
