"""The design's invariants, under random histories.

Every answer is compared with an oracle that has no memory to manage; the null worker's tokens
depend on every entry of the block table, so a wrong table cannot give a right answer.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from octavo.scheduler.request import Request
from tests.scheduler.simulation import Simulation, expected, request

NUM_BLOCKS = 14
BLOCK = 4


@st.composite
def requests(draw: st.DrawFn, name: str) -> Request:
    """Prompts are cut from few bases, so that prefixes are shared often. Each fits alone."""
    base = draw(st.integers(0, 2))
    size = draw(st.integers(1, 30))
    own = draw(st.lists(st.integers(0, 3), max_size=3))
    prompt = [base * 10 + i % 7 for i in range(size)] + own
    width = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    shared = len(prompt) // BLOCK
    longest = (shared + (NUM_BLOCKS - 1 - shared) // width) * BLOCK - len(prompt)
    sampling: dict[str, Any] = {"n": width}
    if draw(st.booleans()) and width > 1:
        sampling = {
            "beam_width": width,
            "n": draw(st.integers(1, width)),
            "length_penalty": draw(st.sampled_from([0.0, 1.0, 2.0])),
            "early_stopping": draw(st.sampled_from([False, True, "never"])),
        }
    return request(
        name,
        prompt,
        draw(st.integers(0, max(0, min(20, longest)))),
        priority=draw(st.integers(0, 1)),
        salt=draw(st.sampled_from(["", "x"])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 63), max_size=6))),
        **sampling,
    )


class EngineHistory(RuleBasedStateMachine):
    """Any order of arrivals, plans, results, preemptions, aborts, lost plans and cache resets, on a
    small device and with a host that has much room, little, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[tuple[str, int]] = set()
        self.arrivals = 0

    @initialize(
        host=st.sampled_from([0, 2, 6, 40]),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        write_behind=st.integers(0, 3),
        a_token=st.sampled_from([1e-5, 1e-3]),
    )
    def start(self, host: int, mode: str, write_behind: int, a_token: float) -> None:
        self.sim = Simulation(
            NUM_BLOCKS, num_host_blocks=host, ranks=2, max_num_seqs=6, max_num_batched_tokens=10,
            max_num_queued_reqs=10_000, preemption_mode=mode, write_behind_blocks=write_behind,
        )  # fmt: skip
        self.sim.fix_rates(a_token, 1e-4)

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.arrivals += 1
        item = data.draw(requests(f"r{self.arrivals}"))
        self.sim.add(item)
        self.sent |= {(item.id, index) for index in range(item.sampling.n)}

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

    @precondition(lambda self: self.sim.scheduler.roster.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Out of turn, so that every state is met."""
        group = data.draw(st.sampled_from(self.sim.scheduler.roster.running))
        self.sim.preempt(group.request.id)

    @precondition(lambda self: self.sim.scheduler.live_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.sim.scheduler.live_requests))
        used = self.sim.scheduler.cache.pool.used
        assert self.sim.scheduler.abort(name)
        assert self.sim.scheduler.cache.pool.used <= used
        self.sent = {each for each in self.sent if each[0] != name}

    @precondition(lambda self: any(len(g.sequences) > 1 for g in self.sim.scheduler.groups))
    @rule(data=st.data())
    def abort_a_sample(self, data: st.DataObject) -> None:
        groups = [g for g in self.sim.scheduler.groups if len(g.sequences) > 1 and g.beams is None]
        if groups:
            group = data.draw(st.sampled_from(groups))
            index = data.draw(st.sampled_from([seq.index for seq in group.sequences]))
            assert self.sim.scheduler.abort(group.request.id, index)
            self.sent.remove((group.request.id, index))

    @rule(executed=st.booleans())
    def lose_a_plan(self, executed: bool) -> None:
        self.sim.lose(executed=executed)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.sim.scheduler.reset_prefix_cache()

    @invariant()
    def holds(self) -> None:
        self.sim.check_invariants()

    def teardown(self) -> None:
        self.sim.run()
        for name, index in self.sent:
            answer = expected(self.sim.requests[name], index)
            assert self.sim.samples[name][index] == answer, (name, index)
        self.sim.check_empty()


EngineHistory.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngineHistory = EngineHistory.TestCase


def run_all(batch: list[Request], **options: Any) -> Simulation:
    sim = Simulation(**options)
    sim.fix_rates(1e-4, 1e-4)
    sim.add(*batch)
    sim.run()
    return sim


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    return [draw(requests(f"r{i}")) for i in range(draw(st.integers(1, 8)))]


@settings(max_examples=60, deadline=None)
@given(
    batches(), st.integers(1, 3), st.integers(4, 24), st.integers(4, 8), st.booleans(),
    st.sampled_from([0, 5, 30]), st.sampled_from(["auto", "recompute", "swap"]),
)  # fmt: skip
def test_any_mix_that_fits_alone_finishes_with_the_right_answers(
    batch: list[Request],
    depth: int,
    budget: int,
    seats: int,
    caching: bool,
    host: int,
    mode: str,
) -> None:
    sim = run_all(
        batch, num_blocks=NUM_BLOCKS, depth=depth, max_num_batched_tokens=budget,
        max_num_seqs=seats, enable_prefix_caching=caching, num_host_blocks=host,
        preemption_mode=mode,
    )  # fmt: skip
    sim.check_answers()
    sim.check_empty()


@settings(max_examples=30, deadline=None)
@given(batches(), st.sampled_from([0, 5, 30]), st.sampled_from(["auto", "recompute", "swap"]))
def test_the_same_inputs_give_the_same_plans(batch: list[Request], host: int, mode: str) -> None:
    options: dict[str, Any] = {
        "num_blocks": NUM_BLOCKS, "depth": 2, "max_num_batched_tokens": 9,
        "num_host_blocks": host, "preemption_mode": mode,
    }  # fmt: skip
    one, two = run_all(batch, **options), run_all(batch, **options)
    assert one.plans == two.plans and one.events == two.events


@settings(max_examples=40, deadline=None)
@given(batches())
def test_preemptions_stay_bounded(batch: list[Request]) -> None:
    sim = run_all(batch, num_blocks=NUM_BLOCKS, max_num_batched_tokens=16)
    assert sim.scheduler.counters.preemptions <= 4 * len(batch)
