"""Thousands of random steps whose seeds are fixed: what hypothesis finds by luck is met each time.

The same invariants and the same oracle as in `test_invariants`; only the driver differs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.scheduler.request import Request
from tests.scheduler.simulation import Simulation, expected, request

NUM_BLOCKS = 14
BLOCK = 4


class History:
    """One engine, and random things that happen to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lost: list[Simulation] = []
        self.arrivals = 0
        self.awaited: set[tuple[str, int]] = set()
        self.sim = self._engine()

    def _engine(self) -> Simulation:
        draw = self.random
        sim = Simulation(
            NUM_BLOCKS,
            num_host_blocks=draw.choice([0, 2, 6, 40]),
            ranks=2,
            block_size=BLOCK,
            max_num_seqs=6,
            max_num_batched_tokens=10,
            max_num_queued_reqs=10_000,
            preemption_mode=draw.choice(["auto", "recompute", "swap"]),
            write_behind_blocks=draw.randint(0, 3),
        )
        sim.fix_rates(draw.choice([1e-5, 1e-3]), 1e-4)
        return sim

    def arrive(self) -> None:
        item = self._request(f"r{self.arrivals}")
        self.arrivals += 1
        self.sim.add(item)
        self.awaited |= {(item.id, index) for index in range(item.sampling.n)}

    def _request(self, name: str) -> Request:
        draw = self.random
        base, size = draw.randint(0, 2), draw.randint(1, 30)
        prompt = [base * 10 + i % 7 for i in range(size)]
        prompt += [draw.randint(0, 3) for _ in range(draw.randint(0, 3))]
        width = draw.choice([1, 1, 1, 2, 3, 4])
        shared = len(prompt) // BLOCK
        longest = (shared + (NUM_BLOCKS - 1 - shared) // width) * BLOCK - len(prompt)
        sampling: dict[str, Any] = {"n": width}
        if width > 1 and draw.random() < 0.5:
            sampling = {
                "beam_width": width,
                "n": draw.randint(1, width),
                "length_penalty": draw.choice([0.0, 1.0, 2.0]),
                "early_stopping": draw.choice([False, True, "never"]),
            }
        return request(
            name,
            prompt,
            draw.randint(0, max(0, min(20, longest))),
            priority=draw.randint(0, 1),
            salt=draw.choice(["", "x"]),
            temperature=draw.choice([0.0, 1.0]),
            seed=draw.randint(0, 3),
            stop_token_ids=tuple(draw.randint(0, 63) for _ in range(draw.randint(0, 6))),
            **sampling,
        )

    def plan(self) -> None:
        if len(self.sim.flights) < 3:
            self.sim.plan()

    def receive(self) -> None:
        if self.sim.flights:
            self.sim.receive()

    def advance(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.sim.step()

    def preempt(self) -> None:
        if running := self.sim.scheduler.roster.running:
            self.sim.preempt(self.random.choice(running).request.id)

    def abort(self) -> None:
        if live := self.sim.scheduler.live_requests:
            name = self.random.choice(live)
            assert self.sim.scheduler.abort(name)
            self.awaited = {each for each in self.awaited if each[0] != name}

    def abort_a_sample(self) -> None:
        groups = [
            group
            for group in self.sim.scheduler.groups
            if len(group.sequences) > 1 and group.beams is None
        ]
        if groups:
            seq = self.random.choice(self.random.choice(groups).sequences)
            assert self.sim.scheduler.abort(seq.group.request.id, seq.index)
            self.awaited.remove((seq.group.request.id, seq.index))

    def lose(self) -> None:
        self.sim.lose(executed=self.random.random() < 0.5)

    def die(self) -> None:
        """Another engine, of other settings, goes on with what this one had told."""
        self.lost.append(self.sim)
        self.sim = self._engine()
        self.sim.take_over(self.lost[-1])

    def reset(self) -> None:
        self.sim.scheduler.reset_prefix_cache()

    def finish(self) -> None:
        self.sim.run()
        samples = self._samples()
        for name, index in self.awaited:
            item, answer = samples[name, index]
            assert answer == expected(item, index), (name, index)
        self.sim.check_empty()

    def _samples(self) -> dict[tuple[str, int], tuple[Request, list[int]]]:
        """What was told in the end of each sample, by the last engine that had it."""
        return {
            (name, index): (sim.requests[name], answer)
            for sim in [*self.lost, self.sim]
            for name, answers in sim.samples.items()
            for index, answer in answers.items()
        }


GENTLE = ["arrive", "advance"]
PRESSED = ["arrive", "advance", "plan", "receive", "preempt"]
ROUGH = [
    "arrive", "arrive", "plan", "plan", "receive", "receive", "advance", "preempt", "abort",
    "abort_a_sample", "lose", "reset",
]  # fmt: skip
MORTAL = [*ROUGH, "arrive", "advance", "die"]


@pytest.mark.parametrize(
    ("events", "seeds"),
    [(GENTLE, 220), (PRESSED, 200), (ROUGH, 400), (MORTAL, 300)],
    ids=["gentle", "pressed", "rough", "mortal"],
)
def test_thousands_of_random_steps(events: list[str], seeds: int) -> None:
    steps = resumed = 0
    totals = dict.fromkeys(("preemptions", "preemptions_swap", "swapped_in", "stored", "copied"), 0)
    for seed in range(seeds):
        history = History(seed)
        for _ in range(history.random.randint(5, 60)):
            getattr(history, history.random.choice(events))()
            history.sim.check_invariants()
        history.finish()
        for sim in [*history.lost, history.sim]:
            steps += len(sim.plans)
            resumed += sim.scheduler.counters.resumed
            for name in totals:
                totals[name] += getattr(sim.scheduler.counters, name)
    assert steps > 2000
    assert min(totals.values()) > 100, totals  # it was not idle in any respect
    assert (resumed > 100) == ("die" in events)
