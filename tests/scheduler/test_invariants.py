"""The design's invariants, under random histories.

Every answer is compared with an oracle that has no memory to manage; the null worker's tokens
depend on every entry of the block table, so a wrong table cannot give a right answer.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.scheduler.request import Request
from tests.scheduler.simulation import Simulation, expected, request

NUM_BLOCKS = 14
CAPACITY = (NUM_BLOCKS - 1) * 4


@st.composite
def requests(draw: st.DrawFn, name: str) -> Request:
    """Prompts are cut from few bases, so that prefixes are shared often."""
    base = draw(st.integers(0, 2))
    size = draw(st.integers(1, 30))
    own = draw(st.lists(st.integers(0, 3), max_size=3))
    prompt = [base * 10 + i % 7 for i in range(size)] + own
    return request(
        name,
        prompt,
        draw(st.integers(0, min(20, CAPACITY - len(prompt)))),
        priority=draw(st.integers(0, 1)),
        salt=draw(st.sampled_from(["", "x"])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 63), max_size=6))),
    )


class EngineHistory(RuleBasedStateMachine):
    """Any order of arrivals, plans, results, aborts, lost plans and cache resets."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(
            NUM_BLOCKS, ranks=2, max_num_seqs=4, max_num_batched_tokens=10,
            max_num_queued_reqs=10_000,
        )  # fmt: skip
        self.sent: dict[str, Request] = {}
        self.arrivals = 0

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.arrivals += 1
        item = data.draw(requests(f"r{self.arrivals}"))
        self.sent[item.id] = item
        self.sim.add(item)

    @precondition(lambda self: len(self.sim.flights) < 3)
    @rule()
    def plan(self) -> None:
        self.sim.plan()

    @precondition(lambda self: self.sim.flights)
    @rule()
    def receive(self) -> None:
        self.sim.receive()

    @rule(steps=st.integers(1, 12))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.sim.step()

    @precondition(lambda self: self.sim.scheduler.live_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.sim.scheduler.live_requests))
        used = self.sim.scheduler.cache.pool.used
        assert self.sim.scheduler.abort(name)
        assert self.sim.scheduler.cache.pool.used <= used
        self.sent.pop(name)

    @rule()
    def lose_a_plan(self) -> None:
        self.sim.scheduler.schedule(self.sim.now)
        self.sim.flights.clear()
        self.sim.send(self.sim.scheduler.resync())

    @rule()
    def reset_prefix_cache(self) -> None:
        self.sim.scheduler.cache.pool.reset()

    @invariant()
    def holds(self) -> None:
        scheduler = self.sim.scheduler
        scheduler.check()
        self.sim.check_published()
        pool = scheduler.cache.pool
        assert pool.used + pool.free + 1 == NUM_BLOCKS
        for seq in scheduler._running:
            slots = len(seq.table) * 4
            assert slots - max(seq.granted, len(seq.tokens)) < 4  # waste
        mirrored = [
            {row: state.table for row, state in worker._mirror.rows.items()}
            for worker in self.sim.workers
        ]
        assert mirrored[0] == mirrored[1]
        for seq in scheduler._running:
            assert seq.row is not None and mirrored[0][seq.row] == seq.table

    def teardown(self) -> None:
        self.sim.run()
        for name, item in self.sent.items():
            assert self.sim.answers[name] == expected(item), name
        assert self.sim.scheduler.cache.pool.used == 0


EngineHistory.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngineHistory = EngineHistory.TestCase


def run_all(batch: list[Request], **options: Any) -> Simulation:
    sim = Simulation(**options)
    sim.add(*batch)
    sim.run()
    return sim


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    return [draw(requests(f"r{i}")) for i in range(draw(st.integers(1, 8)))]


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 3), st.integers(1, 24), st.integers(1, 6), st.booleans())
def test_any_mix_that_fits_alone_finishes_with_the_right_answers(
    batch: list[Request], depth: int, budget: int, seats: int, caching: bool
) -> None:
    sim = run_all(
        batch, num_blocks=NUM_BLOCKS, depth=depth, max_num_batched_tokens=budget,
        max_num_seqs=seats, enable_prefix_caching=caching,
    )  # fmt: skip
    assert {name: sim.answers[name] for name in sim.answers} == {
        item.id: expected(item) for item in batch
    }
    assert sim.scheduler.cache.pool.used == 0 and sim.scheduler.num_running == 0


@settings(max_examples=30, deadline=None)
@given(batches())
def test_the_same_inputs_give_the_same_plans(batch: list[Request]) -> None:
    options: dict[str, Any] = {"num_blocks": NUM_BLOCKS, "depth": 2, "max_num_batched_tokens": 9}
    one, two = run_all(batch, **options), run_all(batch, **options)
    assert one.plans == two.plans and one.events == two.events


@settings(max_examples=40, deadline=None)
@given(batches())
def test_preemptions_stay_bounded(batch: list[Request]) -> None:
    sim = run_all(batch, num_blocks=NUM_BLOCKS, max_num_batched_tokens=16)
    assert sim.scheduler.counters.preemptions <= 4 * len(batch)
