"""Films of what never was: the real scheduler does what a workload asks of it under a virtual
clock, with paged memory and with memory reserved. Steps last as long as a device is thought to take
for a model's (`octavo.cluster.simulation.cost`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from octavo.cluster.playback.film import Reel, Shot, join
from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.hardware import GIB, PRESETS
from octavo.cluster.simulation.models import NAMED
from octavo.cluster.simulation.setup import Setup
from octavo.scheduler.config import Allocation, Capacity, PreemptionMode, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest, QueueFull
from octavo.scheduler.plan import StepPlan, StepResult
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler

SHARED_TOKEN = 1
OWN_TOKENS = 1000  # from here on, so that no two prompts have more in common than the prefix


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be played: `model` on `ranks` devices of a kind, both as `octavo simulate` names
    them. Lengths are in tokens, means of what is drawn; `longest` is what a request may have, and
    what is reserved for it where memory is not paged. `rate` is in requests a second of the virtual
    clock. `beside` is the allocation of the second film."""

    model: str = "opt-13b"
    hardware: str = "a100-40"
    ranks: Literal[1, 2, 4, 8] = 1
    block_size: Literal[4, 8, 16, 32, 64] = 16
    blocks: Annotated[int, Meta(ge=8, le=4096)] = 128
    host_blocks: Annotated[int, Meta(ge=0, le=4096)] = 64
    requests: Annotated[int, Meta(ge=1, le=200)] = 40
    rate: Annotated[float, Meta(gt=0, le=200)] = 8.0
    prefix: Annotated[int, Meta(ge=0, le=512)] = 48
    prompt: Annotated[int, Meta(ge=1, le=512)] = 64
    answer: Annotated[int, Meta(ge=1, le=512)] = 128
    longest: Annotated[int, Meta(ge=16, le=2048)] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, le=128)] = 32
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=4096)] = 256
    low: Annotated[float, Meta(ge=0, le=0.5)] = 0.04
    high: Annotated[float, Meta(ge=0, le=0.5)] = 0.08
    sharing: bool = True
    preemption: PreemptionMode = "auto"
    beside: Literal["max", "pow2", "oracle"] = "max"
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0


def films(scene: Scene) -> bytes:
    """The scene with paged memory, and with memory reserved, as they are sent."""
    return join([film(scene, "paged"), film(scene, scene.beside)])


def film(scene: Scene, allocation: Allocation) -> Shot:
    """The scene as the scheduler plays it. Raises `InvalidRequest` where it cannot be."""
    setup = _setup(scene, allocation)
    cost, room = setup.cost(), _room(setup)
    if scene.blocks > room:
        raise InvalidRequest(
            "blocks",
            f"{scene.ranks} x {scene.hardware} with {scene.model} has room for {room:,} blocks of "
            f"{scene.block_size} tokens, fewer than {scene.blocks:,}",
        )
    capacity = Capacity(scene.blocks + 1, scene.block_size, scene.host_blocks, cost.block_bytes)
    scheduler = Scheduler(setup.scheduler, capacity)
    reel = Reel(scheduler)
    coming, refused, taken, now = list(_requests(scene)), 0, 0, 0.0
    step = 0
    while True:
        while coming and coming[0].arrived <= now:
            accepted = _add(scheduler, coming.pop(0), now)
            taken, refused = taken + accepted, refused + (not accepted)
        plan = scheduler.schedule(now)
        scheduler.take_begun()
        scheduler.take_decisions()
        scheduler.take_ended()
        finished = taken - len(scheduler.roster.live)
        if plan is None and not coming:
            shown, codes = reel.cut(allocation, now, step, finished)
            return msgspec.structs.replace(shown, room=room, refused=refused), codes
        if plan is None:
            now = coming[0].arrived
            continue
        step = plan.step
        reel.shoot(now, step, finished)
        result, seconds = _execute(plan, cost)
        now += seconds
        scheduler.update(result, now)


def _setup(scene: Scene, allocation: Allocation) -> Setup:
    """Raises `InvalidRequest`, also for a path, which a stranger must not have read."""
    for name, given, known in (
        ("model", scene.model, NAMED),
        ("hardware", scene.hardware, PRESETS),
    ):
        if given not in known:
            raise InvalidRequest(name, f"{name} must be one of {', '.join(known)}, got {given!r}")
    settings = SchedulerConfig(
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
    hardware, model = PRESETS[scene.hardware], NAMED[scene.model]
    return Setup(hardware, model, settings, scene.ranks, paged=allocation == "paged")


def _room(setup: Setup) -> int:
    """Blocks that fit beside the weights. Raises `InvalidRequest` where those do not."""
    room = math.floor(setup.cache_bytes / setup.cost().block_bytes)
    if room < 1:
        raise InvalidRequest(
            "ranks",
            f"{setup.model.name} takes {setup.weight_bytes / GIB:.0f} GiB of each "
            f"{setup.hardware.name} ({setup.hardware.memory / GIB:.0f} GiB), which leaves no room "
            f"for any block: choose more or larger GPUs than {setup.ranks}",
        )
    return room


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


def _execute(plan: StepPlan, cost: Cost) -> tuple[StepResult, float]:
    """What comes of a plan, and after how many seconds."""
    seconds, copying = cost.step(plan)
    result = StepResult(
        plan.step,
        [SHARED_TOKEN] * sum(work.sample for work in plan.work),
        compute_seconds=seconds,
        copied_blocks=len(plan.swap_out) + len(plan.swap_in) + len(plan.store),
        copy_seconds=copying,
    )
    return result, seconds
