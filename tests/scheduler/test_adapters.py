"""Requests with adapters: their rows are told which, and no more of them run at once than may.

The null worker says something else for each adapter, so an answer that the oracle confirms was
computed under the right name.
"""

from __future__ import annotations

import pytest

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from tests.scheduler.simulation import Simulation, request

ADAPTERS = ("a", "b", "c")


def adapters_running(sim: Simulation) -> set[str]:
    return {group.request.adapter for group in sim.scheduler.roster.running} - {""}


def test_rows_keep_their_adapter_through_forks_preemptions_and_resyncs() -> None:
    sim = Simulation(num_blocks=16, adapters=ADAPTERS)
    for number, adapter in enumerate(["a", "", "b", "a"]):
        sim.add(request(str(number), [number] * 9, 12, adapter=adapter, n=2, temperature=1.0))
    sim.step()
    sim.step()
    sim.lose()
    sim.run()
    assert sim.scheduler.counters.preemptions > 0
    sim.check_answers()
    sim.check_empty()


def test_an_engine_takes_over_with_the_adapter() -> None:
    lost, heir = (Simulation(adapters=ADAPTERS) for _ in range(2))
    lost.add(request("r", list(range(9)), 12, adapter="b"))
    lost.step_until(lambda: len(lost.answers["r"]) == 5)
    heir.take_over(lost)
    heir.run()
    heir.check_answers("r")


def test_an_unknown_adapter_is_refused_and_nothing_of_it_kept() -> None:
    sim = Simulation(adapters=("a", "b"))
    with pytest.raises(InvalidRequest, match="no adapter 'x' here; adapters are: a, b") as caught:
        sim.add(request("r", [1, 2], adapter="x"))
    assert caught.value.param == "model"
    sim.check_empty()


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_adapters_run_at_once_than_may(most: int) -> None:
    sim = Simulation(adapters=ADAPTERS, max_loras=most)
    for number, adapter in enumerate(["a", "", "b", "c", "a", "", "c", "b"]):
        sim.add(request(str(number), [number] * 5, 4, adapter=adapter))
    seen = 0
    while sim.scheduler.live_requests:
        sim.step()
        assert len(adapters_running(sim)) <= most
        seen = max(seen, len(adapters_running(sim)))
    assert seen == most
    sim.check_answers()


def test_without_a_bound_all_run_together() -> None:
    sim = Simulation(adapters=ADAPTERS)
    for adapter in ("", *ADAPTERS):
        sim.add(request(f"r{adapter}", [1, 2, 3], adapter=adapter))
    sim.step()
    assert adapters_running(sim) == set(ADAPTERS)


def test_a_request_that_waits_for_its_turn_is_not_overtaken_for_ever() -> None:
    sim = Simulation(adapters=ADAPTERS, max_loras=1)
    sim.add(request("first", [1] * 5, 6, adapter="a"))
    sim.step()
    sim.add(request("other", [2] * 5, 6, adapter="b"))
    for number in range(20):  # a stream of requests for the adapter that runs
        sim.add(request(f"more{number}", [3] * 5, 6, adapter="a"))
        sim.step()
    assert "other" in sim.finished
    sim.run()
    sim.check_answers()


def test_the_models_own_requests_do_not_wait_for_an_adapters_turn() -> None:
    sim = Simulation(adapters=ADAPTERS, max_loras=1)
    sim.add(request("first", [1] * 5, 40, adapter="a"))
    sim.step()
    sim.add(request("held", [2] * 5, 6, adapter="b"))
    sim.add(request("behind", [3] * 5, 6, adapter="a"))
    sim.add(request("own", [4] * 5, 6))
    while "own" not in sim.finished:
        sim.step()
        assert adapters_running(sim) == {"a"}
    assert not sim.finished.keys() & {"held", "behind"}
    sim.run()
    sim.check_answers()
    sim.check_empty()


def test_a_bound_of_none_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_loras must be positive, got 0"):
        SchedulerConfig(max_model_len=64, max_loras=0)
