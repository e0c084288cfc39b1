"""A scheduler that is recorded while it serves null workers: random work, every answer known."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

from octavo.cluster.journal.recorder import Recorder
from octavo.cluster.journal.settings import JournalSettings
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.plan import StepPlan, decode_plan, decode_result, encode
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker
from tests.scheduler.simulation import VOCAB, request

BLOCK = 4


class Recorded:
    """What the step loop does, without a loop. `plans` are those that went out."""

    def __init__(
        self,
        path: Path,
        num_blocks: int = 14,
        num_host_blocks: int = 0,
        depth: int = 2,
        most_bytes: int = 2**30,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "block_size": BLOCK,
            "max_model_len": 256,
            "max_num_seqs": 6,
            "max_num_batched_tokens": 10,
        } | config
        worker = NullWorker(BLOCK, vocab_size=VOCAB, num_host_blocks=num_host_blocks)
        self.worker = worker
        capacity = worker.allocate(num_blocks)
        self.scheduler = Scheduler(SchedulerConfig(**settings), capacity)
        self.now = 0.0
        self.recorder = Recorder(
            self.scheduler, JournalSettings(path, most_bytes=most_bytes, replica="r"), self.now
        )
        self.depth = depth
        self.flights: deque[bytes] = deque()
        self.plans: list[StepPlan] = []

    def add(self, *items: Request) -> None:
        for item in items:
            self.recorder.add(item, self.now)

    def plan(self) -> bool:
        self.now += 0.25
        plan = self.recorder.schedule(self.now)
        if plan is not None:
            self._send(plan)
        return plan is not None

    def _send(self, plan: StepPlan) -> None:
        raw = encode(plan)
        self.plans.append(decode_plan(raw))
        result = self.worker.execute(raw)
        assert result is not None
        self.flights.append(result)

    def step(self) -> None:
        while len(self.flights) < self.depth and self.plan():
            pass
        _ = self.recorder.awaits_result
        if self.flights:
            self.recorder.update(decode_result(self.flights.popleft()), self.now)
        self.recorder.settle(self.now)

    def lose(self) -> None:
        """What is in flight never comes back."""
        self.flights.clear()
        self._send(self.recorder.resync())

    def run(self) -> None:
        while self.scheduler.live_requests or self.flights:
            self.step()

    def close(self) -> None:
        self.recorder.close(self.now)


def random_request(draw: random.Random, name: str) -> Request:
    base, size = draw.randint(0, 2), draw.randint(1, 30)
    prompt = [base * 10 + i % 7 for i in range(size)]
    prompt += [draw.randint(0, 3) for _ in range(draw.randint(0, 3))]
    width = draw.choice([1, 1, 2, 3])
    longest = (len(prompt) // BLOCK + (13 - len(prompt) // BLOCK) // width) * BLOCK - len(prompt)
    sampling: dict[str, Any] = {"n": width}
    if width > 1 and draw.random() < 0.5:
        sampling = {"beam_width": width, "n": draw.randint(1, width)}
    if width == 1 and draw.random() < 0.1:
        sampling["prompt_logprobs"] = 1
    return request(
        name,
        prompt,
        draw.randint(0, max(0, min(20, longest))),
        priority=draw.randint(0, 1),
        salt=draw.choice(["", "x"]),
        temperature=draw.choice([0.0, 1.0]),
        seed=draw.randint(0, 3),
        stop=("never",) if sampling.get("n") == 1 and "beam_width" not in sampling else (),
        stop_token_ids=tuple(draw.randint(0, 63) for _ in range(draw.randint(0, 3))),
        **sampling,
    )


def live_randomly(engine: Recorded, draw: random.Random, events: int) -> None:
    """Arrivals, steps, aborts, lost plans and resets, then the rest to its end."""
    for number in range(events):
        match draw.choice(["arrive", "arrive", "step", "step", "plan", "abort", "lose", "reset"]):
            case "arrive":
                engine.add(random_request(draw, f"r{number}"))
            case "step":
                for _ in range(draw.randint(1, 9)):
                    engine.step()
            case "plan":
                engine.plan()
            case "abort" if live := engine.scheduler.live_requests:
                engine.recorder.abort(draw.choice(live), draw.choice([None, 0, 1]))
            case "lose" if draw.random() < 0.3:
                engine.lose()
            case "reset" if draw.random() < 0.3:
                engine.recorder.reset_prefix_cache()
    engine.run()
