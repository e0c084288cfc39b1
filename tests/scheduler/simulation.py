"""A whole engine in one thread: scheduler, wire and null workers, with every invariant checked."""

from __future__ import annotations

from collections import deque
from typing import Any

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.plan import StepPlan, decode_plan, decode_result, encode
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker, next_token

VOCAB = 64


def request(
    name: str,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    priority: int = 0,
    salt: str = "",
    **sampling: Any,
) -> Request:
    """A greedy request, unless `sampling` says otherwise."""
    params: dict[str, Any] = {"temperature": 0.0, "seed": 0, "max_tokens": max_tokens, **sampling}
    return Request(name, prompt, SamplingParams(**params), priority=priority, salt=salt)


def expected(request: Request) -> list[int]:
    """The answer, by an oracle that has no memory to manage."""
    tokens, sampling = list(request.prompt), request.sampling
    assert sampling.max_tokens is not None
    seed = None if sampling.greedy else sampling.seed
    answer: list[int] = []
    while len(answer) < sampling.max_tokens:
        answer.append(next_token(tokens + answer, VOCAB, seed))
        if answer[-1] in sampling.stop_token_ids:
            break
    return answer


class Simulation:
    """`depth` plans are in flight at most. `answers` and `finished` fill as events come."""

    def __init__(
        self, num_blocks: int = 64, *, ranks: int = 1, depth: int = 1, **config: Any
    ) -> None:
        settings: dict[str, Any] = {
            "block_size": 4,
            "max_model_len": 1024,
            "max_num_seqs": 8,
        } | config
        self.config = SchedulerConfig(**settings)
        self.scheduler = Scheduler(self.config, Capacity(num_blocks, self.config.block_size))
        self.workers = [
            NullWorker(self.config.block_size, vocab_size=VOCAB, rank=rank) for rank in range(ranks)
        ]
        for worker in self.workers:
            worker.allocate(num_blocks)
        self.depth = depth
        self.now = 0.0
        self.flights: deque[bytes] = deque()
        self.plans: list[StepPlan] = []
        self.answers: dict[str, list[int]] = {}
        self.events: list[TokenEvent] = []
        self.finished: dict[str, Finish] = {}

    def add(self, *requests: Request) -> None:
        for item in requests:
            self.scheduler.add(item, self.now)
            self.answers[item.id] = []

    def plan(self) -> StepPlan | None:
        """Makes a plan, if one is to be made, and has every rank execute its bytes."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        self.scheduler.check()
        if plan is not None:
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
        events = self.scheduler.update(decode_result(self.flights.popleft()), self.now)
        self.scheduler.check()
        for event in events:
            self.events.append(event)
            self.answers[event.request_id] += event.tokens
            if event.finish is not None:
                self.finished[event.request_id] = event.finish
        return events

    def step(self) -> list[TokenEvent]:
        """What the engine does: fill the flight deck, then take one result in."""
        while len(self.flights) < self.depth and self.plan() is not None:
            pass
        return self.receive() if self.flights else []

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

    def check_writes(self, plan: StepPlan) -> None:
        """No slot is written twice in a step, and none in a block that two tables hold."""
        pool, running = self.scheduler.cache.pool, self.scheduler._running
        tables = {seq.row: seq.table for seq in running}
        written: set[int] = set()
        for work in plan.work:
            for position in range(work.start, work.start + work.count):
                block = tables[work.row][position // self.config.block_size]
                slot = block * self.config.block_size + position % self.config.block_size
                assert pool.references[block] == 1, "a write into a shared block"
                assert slot not in written, "two writes into one slot"
                written.add(slot)

    def check_published(self) -> None:
        """Every findable block of a live sequence holds what its name says."""
        cache = self.scheduler.cache
        for seq in self.scheduler._running:
            for place in range(seq.published):
                block = cache.pool.find(seq.hashes(cache.block_size)[place])
                if block is None:
                    continue
                start = place * cache.block_size
                content = seq.tokens[start : start + cache.block_size]
                for worker in self.workers:
                    assert worker._cache[block].tolist() == content
