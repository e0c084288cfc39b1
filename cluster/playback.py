"""Films of a scheduler, for the dashboard to play: the real scheduler does what a workload asks of
it under a virtual clock, and each of its plans is a frame.

    python -m octavo.cluster.playback < scene.json > films

runs beside a server, so that no engine waits for it. A step lasts as long as on a toy of a device
(`FIXED_SECONDS` and so on): what a film shows is the policy, not any machine's speed.

What is written: the length of a heading (4 bytes, little-endian), the heading (`Films`, JSON), then
the codes of all frames of all films, each as `octavo.cluster.picture` writes those of a tier.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from octavo.cluster.picture import codes, moved, write
from octavo.scheduler.config import Allocation, Capacity, PreemptionMode, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest, OctavoError, QueueFull
from octavo.scheduler.glance import moves_under_way
from octavo.scheduler.introspection import measure_memory
from octavo.scheduler.plan import StepPlan, StepResult
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler

MOST_FRAMES = 1000  # a film; what comes after is not shown
FIXED_SECONDS = 0.02  # of a step
TOKEN_SECONDS = 0.000_05  # for each token that it computes
BLOCK_SECONDS = 0.000_2  # for each block that it copies between the tiers
BLOCK_BYTES = 2**20
SHARED_TOKEN = 1
OWN_TOKENS = 1000  # from here on, so that no two prompts have more in common than the prefix


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be played. Lengths are in tokens, means of what is drawn; `longest` is what a
    request may have, and what is reserved for it where memory is not paged. `rate` is in requests a
    second of the virtual clock. `beside` is the allocation of the second film."""

    block_size: Literal[4, 8, 16, 32, 64] = 16
    blocks: Annotated[int, Meta(ge=8, le=2048)] = 128
    host_blocks: Annotated[int, Meta(ge=0, le=2048)] = 64
    requests: Annotated[int, Meta(ge=1, le=200)] = 32
    rate: Annotated[float, Meta(gt=0, le=200)] = 6.0
    prefix: Annotated[int, Meta(ge=0, le=512)] = 48
    prompt: Annotated[int, Meta(ge=1, le=512)] = 64
    answer: Annotated[int, Meta(ge=1, le=512)] = 96
    longest: Annotated[int, Meta(ge=16, le=2048)] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, le=128)] = 24
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=4096)] = 256
    low: Annotated[float, Meta(ge=0, le=0.5)] = 0.04
    high: Annotated[float, Meta(ge=0, le=0.5)] = 0.08
    sharing: bool = True
    preemption: PreemptionMode = "auto"
    beside: Literal["max", "pow2", "oracle"] = "max"
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A plan on its way: when, requests by what became of them, slots of the pool by what is in
    them, and how many bytes of codes belong to it, in how many runs (-1: one a block)."""

    at: float
    running: int
    waiting: int
    finished: int
    preempted: int
    used: int
    cached: int
    tokens: int
    reserved: int
    wasted: int
    size: int
    runs: int


class Film(msgspec.Struct, frozen=True):
    """`low` and `high` are the watermarks, in free blocks. `whole` is whether it goes to the end;
    `refused` requests were too long for the pool or the queue."""

    name: str
    total: int
    block_size: int
    low: int
    high: int
    whole: bool
    refused: int
    frames: list[Frame]


class Films(msgspec.Struct, frozen=True):
    films: list[Film]


class Reel:
    """Takes a frame of a scheduler whenever it is asked to."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._name = name
        self._scheduler = scheduler
        self._frames: list[Frame] = []
        self._codes: list[bytes] = []
        self._finished = 0

    @property
    def full(self) -> bool:
        return len(self._frames) >= MOST_FRAMES

    def shoot(self, at: float) -> None:
        """A frame at the moment, while the newest plan is on its way."""
        scheduler = self._scheduler
        pool, counters = scheduler.cache.pool, scheduler.counters
        raw, runs = write(codes(pool.references, pool.named, moved(moves_under_way(scheduler))))
        self._finished += len(scheduler.take_ended())
        memory = measure_memory(scheduler)
        frame = Frame(
            round(at, 4),
            scheduler.num_running,
            scheduler.num_waiting,
            self._finished,
            counters.preemptions,
            pool.used,
            pool.cached,
            memory.token_slots,
            memory.reserved_slots,
            memory.wasted_slots,
            len(raw),
            runs,
        )
        self._frames.append(frame)
        self._codes.append(raw)

    def cut(self, whole: bool, refused: int = 0) -> tuple[Film, bytes]:
        """The film, and the codes of all of its frames."""
        scheduler = self._scheduler
        low, high = scheduler.config.watermarks(scheduler.capacity)
        film = Film(
            name=self._name,
            total=scheduler.capacity.num_blocks,
            block_size=scheduler.capacity.block_size,
            low=low,
            high=high,
            whole=whole,
            refused=refused,
            frames=self._frames,
        )
        return film, b"".join(self._codes)


def film(scene: Scene, allocation: Allocation) -> tuple[Film, bytes]:
    """The scene as the scheduler plays it. Raises `InvalidRequest` where it cannot be."""
    config = SchedulerConfig(
        max_model_len=scene.longest,
        block_size=scene.block_size,
        max_num_seqs=scene.max_num_seqs,
        max_num_batched_tokens=scene.max_num_batched_tokens,
        enable_prefix_caching=scene.sharing,
        watermark_low=scene.low,
        watermark_high=scene.high,
        preemption_mode=scene.preemption,
        allocation=allocation,
    )
    capacity = Capacity(scene.blocks + 1, scene.block_size, scene.host_blocks, BLOCK_BYTES)
    scheduler = Scheduler(config, capacity)
    reel = Reel(allocation, scheduler)
    coming, refused, now = list(_requests(scene)), 0, 0.0
    while not reel.full:
        while coming and coming[0].arrived <= now:
            refused += not _add(scheduler, coming.pop(0), now)
        plan = scheduler.schedule(now)
        scheduler.take_begun()
        scheduler.take_decisions()
        if plan is None:
            if not coming:
                reel.shoot(now)
                return reel.cut(True, refused)
            now = coming[0].arrived
            continue
        reel.shoot(now)
        result = _execute(plan)
        now += result.compute_seconds + result.copy_seconds
        scheduler.update(result, now)
    return reel.cut(False, refused)


def _add(scheduler: Scheduler, request: Request, now: float) -> bool:
    try:
        scheduler.add(request, now)
    except (InvalidRequest, QueueFull):
        return False
    return True


def _requests(scene: Scene) -> Iterator[Request]:
    """Arrivals are Poisson's, lengths exponential around their means."""
    source, at, own = random.Random(f"scene {scene.seed}"), 0.0, OWN_TOKENS
    for number in range(scene.requests):
        at += source.expovariate(scene.rate)
        length = min(max(1, round(source.expovariate(1 / scene.prompt))), scene.longest)
        answer = max(1, round(source.expovariate(1 / scene.answer)))
        prompt = [SHARED_TOKEN] * scene.prefix + list(range(own, own + length))
        prompt = prompt[: max(1, scene.longest - 1)]
        own += length
        most = max(1, min(answer, scene.longest - len(prompt)))
        sampling = SamplingParams(max_tokens=most, seed=0, ignore_eos=True)
        yield Request(f"{number}", prompt, sampling, arrived=at)


def _execute(plan: StepPlan) -> StepResult:
    copied = len(plan.swap_out) + len(plan.swap_in) + len(plan.store)
    return StepResult(
        plan.step,
        [SHARED_TOKEN] * sum(work.sample for work in plan.work),
        compute_seconds=FIXED_SECONDS + TOKEN_SECONDS * sum(work.count for work in plan.work),
        copied_blocks=copied,
        copy_seconds=BLOCK_SECONDS * copied,
    )


def films(scene: Scene) -> bytes:
    """The scene with paged memory, and with memory reserved, as they are sent."""
    made = [film(scene, "paged"), film(scene, scene.beside)]
    heading = msgspec.json.encode(Films([each for each, _ in made]))
    length = len(heading).to_bytes(4, "little")
    return b"".join((length, heading, *(raw for _, raw in made)))


def main() -> int:
    """The way of a program: status 1 and one sentence where the scene cannot be."""
    try:
        scene = msgspec.json.decode(sys.stdin.buffer.read(), type=Scene)
        made = films(scene)
    except (OctavoError, msgspec.MsgspecError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
