"""What is simulated: a model on devices, the scheduler's settings, and the memory that is left."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.fleet import RoutingPolicy, choose_by, run
from octavo.cluster.simulation.hardware import GIB, Hardware
from octavo.cluster.simulation.models import ModelSizes
from octavo.cluster.simulation.naming import Naming
from octavo.cluster.simulation.record import Record, Summary
from octavo.cluster.simulation.replica import Replica
from octavo.cluster.simulation.workload import Job
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.hashing import root_hash
from octavo.scheduler.sampling import SamplingParams

CONTEXT_BYTES = 1.0 * GIB  # CUDA's own, and what libraries allocate: a guess
ACTIVATIONS = 6  # values a token that live at once in a layer, over its widest part: a guess


@dataclass(frozen=True, slots=True)
class Setup:
    """`ranks` devices share one replica's model. `blocks` is how many one replica has, None for
    what fits into `utilization` of its devices' memory. `host_bytes` is a rank's host tier.
    `paged` and `copies` are those of `Cost`. With a `grain`, each simulated token stands for so
    many, and each step for so many steps: coarser, and as much faster. `sampling` is what all
    requests ask for besides their length."""

    hardware: Hardware
    model: ModelSizes
    scheduler: SchedulerConfig
    ranks: int = 1
    replicas: int = 1
    blocks: int | None = None
    utilization: float = 0.9
    host_bytes: float = 0.0
    paged: bool = True
    copies: int = 1
    grain: int = 1
    routing: RoutingPolicy = "prefix"
    seed: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)

    def changed(self, scheduler: dict[str, Any] | None = None, **changes: Any) -> Setup:
        """A copy with some fields, and some of the scheduler's settings, changed."""
        return replace(self, scheduler=replace(self.scheduler, **scheduler or {}), **changes)

    @property
    def weight_bytes(self) -> float:
        """Of one rank."""
        return self.model.weight_bytes / self.ranks

    @property
    def workspace_bytes(self) -> float:
        """What a step of the largest size needs on one rank, and the device's own context."""
        model, settings = self.model, self.scheduler
        widest = max(model.hidden, model.intermediate // self.ranks)
        step = 2 * ACTIVATIONS * settings.max_num_batched_tokens * widest
        return CONTEXT_BYTES + step + 4 * settings.max_num_seqs * model.vocabulary / self.ranks

    @property
    def cache_bytes(self) -> float:
        """That are left for keys and values on one rank."""
        used = self.weight_bytes + self.workspace_bytes
        return self.hardware.memory * self.utilization - used

    def capacity(self) -> Capacity:
        """Of one replica, in the scheduler's tokens. Raises `InvalidRequest` where there is no
        room."""
        block = self.cost().block_bytes
        blocks = self.blocks
        if blocks is None:
            blocks = max(0, math.floor(self.cache_bytes / block))
        length, size = self.scheduler.max_model_len, self.scheduler.block_size
        if blocks * size < length:
            raise InvalidRequest(
                "max_model_len",
                f"{self.model.name} takes {self.weight_bytes / GIB:.1f} GiB of each "
                f"{self.hardware.name} ({self.hardware.memory / GIB:.1f} GiB), which leaves "
                f"{max(0, blocks) * size:,} tokens for keys and values, too few for one request of "
                f"{length:,}: raise --tensor-parallel-size or --gpu-memory-utilization, or lower "
                f"--max-model-len",
            )
        grain = self.grain
        return Capacity(
            blocks + 1, size // grain, math.floor(self.host_bytes / block), block // grain
        )

    def cost(self) -> Cost:
        return Cost(
            self.hardware,
            self.model,
            self.ranks,
            self.scheduler.block_size,
            paged=self.paged,
            copies=self.copies,
            grain=self.grain,
        )

    def in_grains(self) -> SchedulerConfig:
        """The scheduler's settings where a token stands for `grain`: as many of those at once, each
        step, as there are tokens in each of `grain` steps."""
        settings, grain = self.scheduler, self.grain
        if grain == 1:
            return settings
        if settings.block_size % grain:
            raise InvalidRequest(
                "grain", f"--grain must divide the block size {settings.block_size}, got {grain}"
            )
        return replace(
            settings,
            block_size=settings.block_size // grain,
            max_model_len=settings.max_model_len // grain,
        )


@contextmanager
def _calm() -> Iterator[None]:
    """Nothing that a simulation drops hangs on to itself, and to look for such things among all
    that thousands of caches hold would take most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def simulate(
    setup: Setup,
    jobs: Iterable[Job],
    *,
    slo: dict[str, float] | None = None,
    look: int = 0,
    enough: Callable[[Record], bool] | None = None,
) -> Summary:
    """What comes of `jobs`. `slo` and `look` are those of `Record.summary` and `Replica`; `enough`
    may end it early, and is asked after each step."""
    capacity, settings, cost = setup.capacity(), setup.in_grains(), setup.cost()
    record = Record(setup.grain)
    candidates = 0
    if setup.sampling.get("beam_width") is not None:
        candidates = SamplingParams(**setup.sampling).beam_candidates
    replicas = [
        Replica(str(i), settings, capacity, cost, record, candidates=candidates, look=look)
        for i in range(setup.replicas)
    ]
    naming = None
    if settings.enable_prefix_caching and settings.allocation == "paged":  # else names are private
        naming = Naming(root_hash(settings.revision, "", ""), settings.block_size)
    requests = (
        (
            job.request(setup.grain, setup.sampling, runs),
            None if naming is None else naming.name(runs),
        )
        for job in jobs
        for runs in (job.runs(setup.grain),)
    )
    choice = choose_by(setup.routing, replicas, setup.seed)
    with _calm():
        run(requests, replicas, choice, None if enough is None else lambda: enough(record))
    counters = [each.scheduler.counters for each in replicas]
    taken = [each.requests for each in replicas]
    return record.summary(counters, taken, slots=capacity.tokens, slo=slo)
