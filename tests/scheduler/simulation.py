"""A whole engine in one thread: scheduler, wire and null workers, with every invariant checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.scheduler.beams import BeamSearch
from octavo.scheduler.checks import check
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.draft import RowChanges
from octavo.scheduler.moves import Moves
from octavo.scheduler.plan import StepPlan, decode_plan, decode_result, encode
from octavo.scheduler.preemption import Decision
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams, mix_seed
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.workers.null import NullWorker, next_candidates, next_token

VOCAB = 64


def request(
    name: str,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    priority: int = 0,
    salt: str = "",
    adapter: str = "",
    **sampling: Any,
) -> Request:
    """A greedy request, unless `sampling` says otherwise."""
    params: dict[str, Any] = {"temperature": 0.0, "seed": 0, "max_tokens": max_tokens, **sampling}
    return Request(
        name, prompt, SamplingParams(**params), priority=priority, salt=salt, adapter=adapter
    )


def expected(request: Request, index: int = 0) -> list[int]:
    """The answer, or the beam ranked `index`, by an oracle that has no memory to manage."""
    tokens, sampling = list(request.prompt), request.sampling
    assert sampling.max_tokens is not None and sampling.seed is not None
    if sampling.beam_width is not None:
        return _expected_beams(request)[index]
    seed = None if sampling.greedy else mix_seed(sampling.seed, index)
    answer: list[int] = []
    while len(answer) < sampling.max_tokens:
        answer.append(next_token(tokens + answer, VOCAB, seed, request.adapter))
        if answer[-1] in sampling.stop_token_ids:
            break
    return answer


def _expected_beams(request: Request) -> list[list[int]]:
    sampling = request.sampling
    assert sampling.max_tokens is not None and sampling.beam_width is not None
    if sampling.max_tokens == 0:
        return [[]] * sampling.n
    search = BeamSearch(
        sampling.beam_width,
        sampling.max_tokens,
        sampling.length_penalty,
        sampling.early_stopping,
        frozenset(sampling.stop_token_ids),
    )
    beams = [list(request.prompt)]
    while True:
        count = sampling.beam_candidates
        survivors = search.step([next_candidates(beam, VOCAB, count) for beam in beams])
        if search.done:
            return [beam.tokens for beam in search.best(sampling.n)]
        beams = [[*beams[survivor.parent], survivor.token] for survivor in survivors]


class Simulation:
    """`depth` plans are in flight at most. `samples` fill as events come, by request and index;
    `answers` are the first of them; `finished` has those requests all of whose samples ended."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        num_host_blocks: int = 0,
        ranks: int = 1,
        depth: int = 1,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "block_size": 4,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "write_behind_below": 1.0,  # always
        } | config
        self.config = SchedulerConfig(**settings)
        self.workers = [
            NullWorker(
                self.config.block_size,
                vocab_size=VOCAB,
                num_host_blocks=num_host_blocks,
                rank=rank,
            )
            for rank in range(ranks)
        ]
        capacities = [worker.allocate(num_blocks) for worker in self.workers]
        self.scheduler = Scheduler(self.config, capacities[0])
        self.depth = depth
        self.now = 0.0
        self.flights: deque[bytes] = deque()
        self.plans: list[StepPlan] = []
        self.requests: dict[str, Request] = {}
        self.samples: dict[str, dict[int, list[int]]] = {}
        self.events: list[TokenEvent] = []
        self.finished: dict[str, Finish] = {}
        self._finishes: dict[str, int] = {}
        self._contents: dict[bytes, list[int]] = {}
        self._publish = self.scheduler.cache.publish
        self.scheduler.cache.publish = self._note_and_publish  # type: ignore[method-assign]

    @property
    def answers(self) -> dict[str, list[int]]:
        return {name: samples[0] for name, samples in self.samples.items()}

    @property
    def running(self) -> list[Sequence]:
        """All sequences that hold rows."""
        return [seq for group in self.scheduler.roster.running for seq in group.sequences]

    def add(self, *requests: Request) -> None:
        for item in requests:
            self.scheduler.add(item, self.now)
            self.requests[item.id] = item
            given = item.resumed or [[] for _ in range(item.sampling.n)]
            self.samples[item.id] = {index: [*(given[index] or [])] for index in item.live_samples}
            self._finishes[item.id] = item.sampling.n - len(item.live_samples)

    def take_over(self, lost: Simulation) -> None:
        """Goes on with all that is live in an engine that died, from what that one had told."""
        for group in lost.scheduler.groups:
            item, told = lost.requests[group.request.id], lost.samples[group.request.id]
            live = {seq.index for seq in group.sequences}
            begun = group.beams is None and any(told.values())
            resumed = [told[index] if index in live else None for index in range(item.sampling.n)]
            self.add(msgspec.structs.replace(item, resumed=resumed if begun else []))

    def plan(self) -> StepPlan | None:
        """Makes a plan, if one is to be made, and has every rank execute its bytes."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        check(self.scheduler)
        if plan is not None:
            self.check_counts(plan)
            self.send(plan)
        return plan

    def send(self, plan: StepPlan) -> None:
        self.check_writes(plan)
        raw = encode(plan)
        self.plans.append(decode_plan(raw))
        results = [worker.execute(raw) for worker in self.workers]
        assert results[0] is not None and results[1:] == [None] * (len(results) - 1)
        self.flights.append(results[0])

    def receive(self) -> list[TokenEvent]:
        """Takes the oldest result in."""
        events = list(self.scheduler.update(decode_result(self.flights.popleft()), self.now))
        check(self.scheduler)
        for event in events:
            name = event.request_id
            self.events.append(event)
            self.samples[name][event.index] += event.tokens
            self._finishes[name] += event.finish is not None
            whole = event.finish in (Finish.ERROR, Finish.ABORT)
            if event.finish and (whole or self._finishes[name] == self.requests[name].sampling.n):
                self.finished[name] = event.finish
        return events

    def step(self) -> list[TokenEvent]:
        """What the engine does: fill the flight deck, then take one result in."""
        while len(self.flights) < self.depth and self.plan() is not None:
            pass
        return self.receive() if self.flights else []

    def fix_rates(self, a_token: float, a_block: float) -> None:
        """Seconds to compute a token and to copy a block, whatever is measured: choices that
        depend on them can then be repeated."""
        rates = self.scheduler.rates
        rates.seconds_a_token, rates.seconds_a_block = a_token, a_block
        rates.observe_step = lambda flight, result: None  # type: ignore[method-assign]

    def step_until(self, reached: Callable[[], bool], limit: int = 1000) -> None:
        for _ in range(limit):
            if reached():
                return
            self.step()
        raise AssertionError(f"not reached after {limit} steps")

    def preempt(self, name: str) -> Decision:
        """Out of turn."""
        scheduler = self.scheduler
        scheduler._preemption._preempt(scheduler.roster.live[name])
        check(scheduler)
        return scheduler._preemption.decisions[-1]

    def lose(self, *, executed: bool = False) -> StepPlan | None:
        """Makes a plan that never arrives, or whose result never does, and begins anew."""
        lost = self.scheduler.schedule(self.now)
        if executed and lost is not None:
            self.send(lost)
        self.flights.clear()
        self.send(self.scheduler.resync())
        check(self.scheduler)
        return lost

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is live. A scheduler that makes no progress fails here."""
        for _ in range(limit):
            if not self.scheduler.live_requests and not self.flights:
                return
            before = len(self.plans), len(self.flights)
            self.step()
            moved = (len(self.plans), len(self.flights)) != before
            assert moved, "deadlock: requests are live, but nothing is planned or in flight"
        raise AssertionError(f"not finished after {limit} steps")

    def check_answers(self, *names: str) -> None:
        """All samples of these requests, or of all, are what the oracle says."""
        for name in names or self.samples:
            for index, answer in self.samples[name].items():
                assert answer == expected(self.requests[name], index), (name, index)

    def check_empty(self) -> None:
        """Nothing is held on either tier."""
        assert self.scheduler.cache.pool.used == 0 and self.scheduler.cache.host.used == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0

    def check_invariants(self) -> None:
        """All that the design promises of the state between two steps."""
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        check(scheduler)
        assert pool.used + pool.free + 1 == pool.num_blocks
        size = self.config.block_size
        for seq in self.running:
            assert len(seq.table) * size - max(seq.granted, len(seq.tokens)) < size  # waste
        if scheduler.roster.changes == RowChanges() and scheduler.cache.moves == Moves():
            self.check_published()
            tables = {seq.row: seq.table.tolist() for seq in self.running}
            for worker in self.workers:
                rows = worker._mirror.rows
                assert {number: row.table for number, row in rows.items()} == tables

    def check_counts(self, plan: StepPlan) -> None:
        """What is remembered of the plan is what it says."""
        draft, counts = self.scheduler.roster.flights[-1].draft, [work.count for work in plan.work]
        assert draft.tokens == sum(counts) <= draft.budget
        assert draft.chunked == sum(count for count in counts if count > 1)

    def check_writes(self, plan: StepPlan) -> None:
        """No slot is written twice in a step, and none in a block that two tables hold."""
        pool = self.scheduler.cache.pool
        tables = {seq.row: seq.table for seq in self.running}
        newborn = {work.row for work in plan.work if work.count == 0}
        written: set[int] = set()
        for work in plan.work:
            for position in range(work.start, work.start + work.count):
                block = tables[work.row][position // self.config.block_size]
                slot = block * self.config.block_size + position % self.config.block_size
                if pool.references[block] > 1:
                    assert self._is_expected(block, position, newborn), (
                        "a write into a shared block"
                    )
                assert slot not in written, "two writes into one slot"
                written.add(slot)

    def _is_expected(self, block: int, position: int, newborn: set[int]) -> bool:
        """Whether all holders of a block but one wait for this write: siblings that were promised
        it, or that are forked once it is done."""
        holders = [seq for seq in self.running if block in seq.table]
        waiting = [
            seq
            for seq in holders
            if seq.row in newborn or (seq.holds is not None and seq.holds[1] > position)
        ]
        return len(waiting) == len(holders) - 1

    def _note_and_publish(self, seq: Sequence, computed: int) -> None:
        size = self.config.block_size
        for place, name in enumerate(seq.hashes(size)):  # not `tokens`: it stays in the lane
            self._contents[name] = seq._tokens[place * size : (place + 1) * size].tolist()
        self._publish(seq, computed)

    def check_published(self) -> None:
        """Every findable block, on either tier, holds what its name says."""
        cache = self.scheduler.cache
        for worker in self.workers:
            for pool, memory in ((cache.pool, worker._cache), (cache.host, worker._host)):
                for name, block in pool._index.items():
                    assert memory[block].tolist() == self._contents[name]
