"""Faults in a step: what they end, and what they do not touch."""

from __future__ import annotations

from octavo.scheduler.plan import StepResult, decode_result, encode
from octavo.scheduler.request import Finish
from tests.scheduler.simulation import Simulation, request


def break_row(sim: Simulation, place: int) -> None:
    """A fault in the Work at this place of the plan in flight."""
    clean = decode_result(sim.flights.popleft())
    sim.flights.append(encode(StepResult(clean.step, clean.tokens, errors={place: "not a number"})))


def test_a_fault_in_one_row_ends_that_request_alone() -> None:
    sim = Simulation()
    sim.add(request("bad", [1, 2], 4), request("good", [3, 4], 4))
    sim.plan()
    break_row(sim, 0)
    (event, _) = sim.receive()
    assert event.finish is Finish.ERROR and event.error == "not a number"
    sim.run()
    assert sim.finished == {"bad": Finish.ERROR, "good": Finish.LENGTH}
    sim.check_answers("good")


def test_a_fault_in_one_sample_ends_them_all() -> None:
    sim = Simulation()
    sim.add(request("bad", [1] * 6, 4, n=3), request("good", [3, 4], 4))
    sim.step()
    sim.plan()
    break_row(sim, 1)
    assert [event.finish for event in sim.receive()] == [None, Finish.ERROR, None]
    assert sim.scheduler.live_requests == ["good"]
    sim.run()
    sim.check_answers("good")
    sim.check_empty()


def test_what_a_faulty_row_wrote_is_not_found_by_others() -> None:
    sim = Simulation()
    prompt = list(range(9))
    sim.add(request("bad", prompt, 4))
    sim.plan()
    break_row(sim, 0)
    sim.receive()
    assert sim.scheduler.cache.pool.cached == 0
    sim.add(request("good", prompt, 4))
    sim.run()
    sim.check_answers("good")
    assert sim.events[-1].cached_tokens == 0
