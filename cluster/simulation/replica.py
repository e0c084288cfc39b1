"""One replica: the scheduler that serves answers, under a virtual clock.

A step begins with the scheduler's plan, lasts as long as `cost` says, and ends with a result of
made-up tokens. Plans are made when the step before has ended: an engine that makes them a little
before lets in who comes a little later.
"""

from __future__ import annotations

import random

from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.record import Record
from octavo.cluster.simulation.sharing import Sharing
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest, QueueFull
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.plan import StepPlan, StepResult
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler

GENERATED = 3 * 2**30  # tokens from here on are answers'
MOST_GENERATED = 2**30


class Replica:
    """`candidates` is how many continuations a beam is given, 0 where there are no beams. Memory
    is looked at in every `look`th step in which requests wait, 0 for never."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        capacity: Capacity,
        cost: Cost,
        record: Record,
        *,
        candidates: int = 0,
        look: int = 0,
    ) -> None:
        self.name = name
        self.scheduler = Scheduler(config, capacity)
        self.requests = 0  # taken so far
        self.ended: list[str] | None = None  # requests, where somebody wants to know
        self.backlog = 0  # tokens to be computed of requests that have had none yet
        self._cost = cost
        self._sharing = Sharing(config.block_size) if cost.asks_for_sharing else None
        self._record = record
        self._candidates = candidates
        self._look = look
        self._source = random.Random(f"beams {name}")
        self._generated = 0
        self._steps = 0
        self._work: dict[str, int] = {}
        self._plan: StepPlan | None = None
        self._began = 0.0
        self._copying = 0.0

    @property
    def idle(self) -> bool:
        return self._plan is None

    @property
    def ongoing(self) -> int:
        return len(self.scheduler.roster.live)

    def add(
        self, request: Request, now: float, names: list[bytes] | None = None, work: int = 0
    ) -> bool:
        """Whether it was taken. `names` are those of `Scheduler.add`; `work` tokens of it are
        thought to have to be computed."""
        try:
            self.scheduler.add(request, now, names)
        except (InvalidRequest, QueueFull):
            self._record.refused += 1
            return False
        self.requests += 1
        if work:
            self._work[request.id] = work
            self.backlog += work
        return True

    def begin(self, now: float) -> float | None:
        """When the step ends that begins now, or None where there is nothing to do."""
        scheduler = self.scheduler
        self._plan = plan = scheduler.schedule(now)
        scheduler.take_begun()
        scheduler.take_decisions()
        if plan is None:
            return None
        self._began = now
        repeated = 0 if self._sharing is None else self._sharing.follow(plan)
        seconds, self._copying = self._cost.step(plan, repeated)
        record = self._record
        record.step(seconds, scheduler.num_running, scheduler.num_waiting)
        self._steps += 1
        if self._look and scheduler.num_waiting and self._steps % self._look == 0:
            record.memory(measure_memory(scheduler))
        return now + seconds

    def finish(self, now: float) -> None:
        """The step that began last ends now."""
        plan = self._plan
        assert plan is not None
        chosen = sum(each.sample for each in plan.work)
        tokens: list[int] = []
        candidates: list[list[tuple[int, float]]] = []
        if self._candidates:
            candidates = [self._beam() for _ in range(chosen)]
        else:
            begin = self._generated
            self._generated = (begin + chosen) % MOST_GENERATED
            tokens = list(range(GENERATED + begin, GENERATED + begin + chosen))
        result = StepResult(
            plan.step,
            tokens,
            compute_seconds=now - self._began,
            candidates=candidates,
            copied_blocks=len(plan.swap_out) + len(plan.swap_in) + len(plan.store),
            copy_seconds=self._copying,
        )
        events = self.scheduler.update(result, now)
        if self._work:
            for event in events:
                self.backlog -= self._work.pop(event.request_id, 0)
        for group in self.scheduler.take_ended():
            self._record.end(group, now)
            if self.ended is not None:
                self.ended.append(group.id)

    def _beam(self) -> list[tuple[int, float]]:
        """Continuations of one beam, likeliest first: of a language model's, too, the first is
        about as likely as all others together."""
        found, logprob = [], 0.0
        for token in range(self._candidates):
            logprob -= self._source.expovariate(1.0)
            found.append((GENERATED + token, logprob))
        return found
