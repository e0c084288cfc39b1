"""The real scheduler over one worker in this process, a step at a time.

One plan is in flight: nothing overlaps, so the time of a step is its own. The worker is the real
model or the null one, whichever it is given.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.events import StepEvents
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.member import Member

VOCABULARY = 40_000  # made-up prompts have token ids of 100 to this


class Driver:
    """Loads `worker`, and its cache with `worker.measure()` blocks. `planned` is called in every
    step, after it was planned and before it is computed: memory is then as the step uses it."""

    def __init__(
        self, worker: Member, config: SchedulerConfig, planned: Callable[[], None] | None = None
    ) -> None:
        worker.load()
        self.scheduler = Scheduler(config, worker.allocate(worker.measure()))
        self._worker = worker
        self._planned = planned

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.scheduler.add(request, time.monotonic())

    def step(self) -> StepEvents:
        """Plans, computes, and takes the result in. Raises `RuntimeError` where requests are live
        and nothing can be planned for them."""
        plan = self.scheduler.schedule(time.monotonic())
        if plan is None:
            raise RuntimeError(f"nothing to plan for {self.scheduler.live_requests}")
        if self._planned is not None:
            self._planned()
        raw = self._worker.execute(encode(plan))
        assert raw is not None, "rank 0 answers every plan"
        return self.scheduler.update(decode_result(raw), time.monotonic())

    def run(self) -> float:
        """Until no request is live; seconds."""
        start = time.perf_counter()
        while self.scheduler.live_requests:
            self.step()
        return time.perf_counter() - start


def random_tokens(count: int, key: str) -> list[int]:
    """Tokens that no other `key` has, and this one always has."""
    source = random.Random(key)
    return [source.randrange(100, VOCABULARY) for _ in range(count)]


def make_request(name: str, prompt: list[int], output: int, **sampling: Any) -> Request:
    """A request whose every answer has exactly `output` tokens."""
    given = {"temperature": 0, "seed": 0, "ignore_eos": True} | sampling
    return Request(name, prompt, SamplingParams(max_tokens=output, **given))


def embedded_model() -> Path:
    """The embedded model's directory, made if it is not there yet."""
    from octavo.cluster.checkpoints.embedded import prepare

    return prepare(on_progress=say)


def say(line: str) -> None:
    """Progress, for whoever watches."""
    print(line, file=sys.stderr, flush=True)
