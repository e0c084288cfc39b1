"""The decision alone: what it must hold for any reports, and what it says of some."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.cluster.autoscaling import Autoscaling, Load, Report, decide, replicas_for
from octavo.cluster.distributed.serve_policy import STALE_SECONDS, Policy, serve_autoscaling
from octavo.cluster.first_tokens import KEPT, LATELY_SECONDS, FirstTokens
from octavo.scheduler.errors import InvalidRequest

AIMS = Autoscaling(max_replicas=100, target_usage=0.8, scale_down_usage=0.5)
PROMPT = Autoscaling(max_replicas=100, ttft_slo=1.0)


def load(**given: float) -> Load:
    idle = dict.fromkeys(Load.__struct_fields__, 0.0) | {"blocks": 100.0, "seats": 10.0}
    return Load(**idle | given)


def some_loads(draw: random.Random) -> list[Load]:
    return [
        load(
            running=draw.randrange(11),
            waiting=draw.choice([0, 0, draw.randrange(50)]),
            blocks_used=draw.randrange(101),
            blocks_queued=draw.choice([0, draw.randrange(500)]),
            ttft=draw.uniform(0, 4),
            answered=draw.randrange(20),
        )
        for _ in range(draw.randrange(1, 8))
    ]


def run(loads: list[Load], target: int, aims: Autoscaling = AIMS, settled: bool = True) -> int:
    reports = [Report(each, each) for each in loads]
    return decide(reports, len(loads), target, aims, settled=settled)


def busy(count: int) -> Load:
    """Ten percent of the cache for each."""
    return load(running=count, blocks_used=10 * count)


def test_a_full_cache_or_full_seats_ask_for_more() -> None:
    assert run([busy(8)], 1) == 1
    assert run([busy(9)], 1) == 2
    assert run([load(running=9, blocks_used=1)], 1) == 2, "seats alone"
    assert run([load(running=3, blocks_used=90)], 1) == 2, "blocks alone"


def test_what_waits_counts_by_the_blocks_it_needs() -> None:
    assert run([load(running=2, waiting=2, blocks_used=60, blocks_queued=10)], 1) == 1
    assert run([load(running=2, waiting=2, blocks_used=60, blocks_queued=300)], 1) == 4
    many = load(running=2, waiting=38, blocks_used=60, blocks_queued=300)
    assert run([many], 1) == 5


def test_one_long_request_is_no_reason_for_a_second_replica() -> None:
    assert run([load(running=1, blocks_used=100)], 1) == 1


def test_between_the_marks_nothing_happens() -> None:
    assert run([busy(5), busy(5)], 2) == 2, "one alone would be above the lower mark"
    assert run([busy(3), busy(2)], 2) == 1, "one alone stays at it"
    assert run([busy(0), busy(0)], 2) == 0


def test_a_burst_asks_for_nothing_and_a_lull_gives_nothing_back() -> None:
    burst = Report.of([busy(2), busy(2), busy(10), busy(2)])
    assert burst.mean.blocks_used == 40 and burst.peak.running == 10
    assert decide([burst], 1, 1, AIMS, settled=True) == 1
    lull = Report.of([busy(8), busy(0), busy(0), busy(0)])
    assert decide([lull, lull], 2, 2, AIMS, settled=True) == 2


def test_what_is_starting_is_neither_asked_for_twice_nor_given_up() -> None:
    flood = load(running=10, waiting=30, blocks_used=100, blocks_queued=300)
    assert run([flood], 1) == 5
    assert run([flood], 5) == 5, "four of five are on their way"
    assert decide([], 0, 1, AIMS, settled=True) == 1
    assert decide([], 3, 3, AIMS, settled=True) == 3, "no reports are no reason"


def test_late_first_tokens_ask_for_more_once_those_that_came_last_have_settled() -> None:
    late = load(running=4, blocks_used=40, ttft=1.5, answered=10)
    assert run([late], 1, PROMPT) == 2
    assert run([late] * 4, 4, PROMPT) == 6
    assert run([late] * 4, 4, PROMPT, settled=False) == 4
    assert run([late] * 4, 5, PROMPT) == 5, "one is starting"
    worse = msgspec.structs.replace(late, ttft=60.0)
    assert run([worse] * 4, 4, PROMPT) == 8, "twice as many at most"
    assert run([late], 1, AIMS) == 1, "without an SLO it does not matter"


def test_first_tokens_that_are_nearly_late_keep_what_there_is() -> None:
    near = load(running=1, blocks_used=5, ttft=0.8, answered=10)
    assert run([near, near], 2, PROMPT) == 2
    assert run([msgspec.structs.replace(near, ttft=0.3)] * 2, 2, PROMPT) == 1


def test_a_replica_counts_for_as_much_as_it_has_answered() -> None:
    slow, rare = load(running=4, ttft=9.0, answered=1), load(running=4, ttft=0.1, answered=99)
    assert run([slow, rare], 2, PROMPT) == 2
    assert run([slow, msgspec.structs.replace(rare, answered=1)], 2, PROMPT) == 4


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_reported(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        check_any(draw)


def check_any(draw: random.Random) -> None:
    loads, target = some_loads(draw), draw.randrange(1, 12)
    aims = draw.choice([AIMS, PROMPT])
    wanted = run(loads, target, aims)
    live = sum(each.running + each.waiting for each in loads)
    assert wanted >= 0 and wanted <= max(target, live), "no more than there are requests"
    assert bool(wanted) or not live, "never none while something is to do"
    shuffled = draw.sample(loads, len(loads))
    assert run(shuffled, target, aims) == wanted
    place = draw.randrange(len(loads))
    more = list(loads)
    more[place] = msgspec.structs.replace(
        loads[place],
        waiting=loads[place].waiting + draw.randrange(30),
        blocks_queued=loads[place].blocks_queued + draw.randrange(300),
    )
    assert run(more, target, aims) >= wanted, "more work never wants fewer replicas"
    if live:
        assert replicas_for(loads, 0.8) <= replicas_for(loads, 0.5)


@pytest.mark.parametrize("requests", range(1, 60))
def test_a_steady_load_is_answered_once(requests: int) -> None:
    """Shared out evenly over the replicas that it is given."""

    def shared_out(count: int) -> list[Load]:
        each = [requests // count + (number < requests % count) for number in range(count)]
        return [
            load(
                running=min(share, 10),
                waiting=max(0, share - 10),
                blocks_used=10 * min(share, 10),
                blocks_queued=10 * max(0, share - 10),
            )
            for share in each
        ]

    for start in range(1, 20):
        first = run(shared_out(start), start)
        assert run(shared_out(first), first) == first
        assert first * 10 * AIMS.target_usage >= requests


@dataclass
class Controller:
    """Serve's context, and the state that it keeps between two calls."""

    policy: Policy = field(default_factory=lambda: Policy(max_replicas=9, ttft_slo=1.0))
    state: dict[str, Any] = field(default_factory=dict)

    def ask(self, loads: list[Load], target: int, now: float, age: float = 0.0) -> int:
        reports = [msgspec.structs.asdict(each) for each in loads]
        series: dict[str, dict[int, list[Any]]] = {"running_requests": {7: []}}
        for number, report in enumerate(reports):
            for name, value in report.items():
                point = SimpleNamespace(timestamp=now - age, value=value)
                series.setdefault(name, {})[number] = [point]
        context: Any = SimpleNamespace(
            raw_metrics=series,
            current_time=now,
            current_num_replicas=len(loads),
            target_num_replicas=target,
            policy_state=self.state,
        )
        wanted, self.state = self.policy(context)
        return wanted


def test_serve_is_answered_by_the_latest_reports() -> None:
    assert Controller().ask([busy(9)], 1, now=1000.0) == 2
    assert Controller().ask([busy(9)], 1, now=1000.0, age=STALE_SECONDS + 1) == 1


def test_a_replica_that_came_has_time_to_show_what_it_is_good_for() -> None:
    late = load(running=4, ttft=1.5, answered=10)
    controller = Controller()
    assert controller.ask([late], 1, now=0.0) == 1
    assert controller.ask([late], 1, now=LATELY_SECONDS + 1) == 2
    assert controller.ask([late, late], 2, now=LATELY_SECONDS + 2) == 2
    assert controller.ask([late, late], 2, now=2 * LATELY_SECONDS + 3) == 3


def test_serve_is_told_the_bounds_and_the_delays() -> None:
    told = serve_autoscaling(Autoscaling(min_replicas=0, max_replicas=3, upscale_delay_s=1))
    assert (told.min_replicas, told.max_replicas, told.upscale_delay_s) == (0, 3, 1)
    policy = told.policy.get_policy()(**told.policy.policy_kwargs)  # as the controller makes it
    idle: Any = SimpleNamespace(
        raw_metrics=None,
        current_time=0.0,
        current_num_replicas=0,
        target_num_replicas=2,
        policy_state={},
    )
    assert policy(idle)[0] == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "must not be above max_replicas (2), got 3"),
        ({"scale_down_usage": 0.9}, "must not be above target_usage (0.8), got 0.9"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Autoscaling(**{"max_replicas": 4} | given).verify()
    assert words in caught.value.message


def test_first_tokens_are_told_of_for_a_while() -> None:
    first = FirstTokens()
    assert first.lately(0.0) == (0.0, 0)
    for number in range(10):
        first.arrived(str(number), 0.0)
    for number in range(9):
        assert first.came(str(number), number / 10) == number / 10
        assert first.came(str(number), 5.0) is None, "not its first"
    assert first.lately(0.85) == (0.8, 10)
    first.arrived("late", 0.5)
    assert first.lately(20.0) == (19.5, 11), "two still wait"
    first.gone("9")
    first.gone("late")
    assert first.lately(LATELY_SECONDS + 0.75) == (0.8, 1)
    assert first.lately(2 * LATELY_SECONDS) == (0.0, 0)


def test_what_is_kept_of_first_tokens_is_bounded() -> None:
    first = FirstTokens()
    for number in range(3 * KEPT):
        first.arrived(str(number), 0.0)
        if number % 2:
            first.came(str(number), 1.0)
    assert first.lately(1.0)[1] <= 2 * KEPT
