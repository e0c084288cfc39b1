"""How many replicas a model should have: a pure function of what their schedulers report.

Need is measured in cache blocks and in seats (sequences that may run at once), the two things a
replica runs out of, as held by running requests and asked for by waiting ones. It is absolute: it
depends neither on how many replicas there are nor on how many are about to start, so a replica
that takes minutes to start is not asked for twice. Only the time to first token is relative.

Two marks make it steady: what fits below the lower one is given back, what exceeds the upper one is
asked for, and between them nothing happens. How long a need must last before it counts is Ray
Serve's part (`upscale_delay_s`, `downscale_delay_s`).

Knows nothing of Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.cluster.stats import EngineStats
from octavo.scheduler.errors import InvalidRequest

Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]
ROUNDING = 1e-9
FASTEST_GROWTH = 2.0  # at one time, where first tokens come too late


class Autoscaling(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a model's number of replicas follows.

    `target_usage` is the share of blocks and seats that may be in use before another replica is
    asked for; a replica is given back when the rest would stay below `scale_down_usage`. With
    `ttft_slo`, a number of seconds, more are asked for while first tokens (the slowest in ten of
    them) take longer. The delays are in seconds; with `min_replicas` 0 the last replica goes after
    `downscale_to_zero_delay_s`, and the next request starts one and waits for it."""

    max_replicas: Annotated[int, Meta(ge=1)]
    min_replicas: Annotated[int, Meta(ge=0)] = 1
    target_usage: Share = 0.8
    scale_down_usage: Share = 0.5
    ttft_slo: Annotated[float, Meta(gt=0)] | None = None
    upscale_delay_s: Seconds = 10.0
    downscale_delay_s: Seconds = 300.0
    downscale_to_zero_delay_s: Seconds = 900.0

    def verify(self) -> None:
        """Raises `InvalidRequest` where two settings contradict each other."""
        if self.min_replicas > self.max_replicas:
            raise InvalidRequest(
                "min_replicas",
                f"min_replicas must not be above max_replicas ({self.max_replicas}), "
                f"got {self.min_replicas}",
            )
        if self.scale_down_usage > self.target_usage:
            raise InvalidRequest(
                "scale_down_usage",
                f"scale_down_usage must not be above target_usage ({self.target_usage}), "
                f"got {self.scale_down_usage}",
            )


class Load(msgspec.Struct, frozen=True):
    """One replica, as its scheduler reports it. `blocks_queued` are those that waiting requests
    need to be admitted; `ttft` is the time to first token, in seconds, that nine of ten of the
    `answered` recent requests kept below, those that still wait for theirs included."""

    running: float
    waiting: float
    blocks_used: float
    blocks_queued: float
    blocks: float
    seats: float
    ttft: float
    answered: float

    @classmethod
    def of(cls, stats: EngineStats) -> Load:
        return cls(
            running=stats.running,
            waiting=stats.waiting,
            blocks_used=stats.blocks_used,
            blocks_queued=stats.blocks_queued,
            blocks=max(1, stats.capacity.usable_blocks),
            seats=max(1, stats.max_num_seqs),
            ttft=stats.recent_ttft,
            answered=stats.recent_requests,
        )

    @classmethod
    def read(cls, report: Mapping[str, float]) -> Load | None:
        """What `msgspec.structs.asdict` made of one; None where something is missing."""
        if any(name not in report for name in cls.__struct_fields__):
            return None
        return cls(**{name: report[name] for name in cls.__struct_fields__})


class Report(msgspec.Struct, frozen=True):
    """One replica over the last seconds: requests come in bursts, and a moment says little."""

    mean: Load
    peak: Load

    @classmethod
    def of(cls, loads: Sequence[Load]) -> Report:
        """Field by field. At least one."""
        columns = [[getattr(load, name) for load in loads] for name in Load.__struct_fields__]
        return cls(Load(*(sum(each) / len(each) for each in columns)), Load(*map(max, columns)))


def decide(
    reports: Sequence[Report], running: int, target: int, aims: Autoscaling, *, settled: bool
) -> int:
    """Replicas to have, bounds and delays apart. What is usual asks for more, and only what fits at
    its highest is given back.

    `running` replicas are up, of which those in `reports` have reported lately; `target` are wanted
    so far. `settled`: those that came last have had time to show what they are good for.
    """
    if not running or not reports:
        return target  # nothing is known; and what is starting is not given up
    loads = [each.mean for each in reports]
    need = replicas_for(loads, aims.target_usage)
    spare = replicas_for([each.peak for each in reports], aims.scale_down_usage)
    if aims.ttft_slo is not None:
        ttft = time_to_first_token(loads)
        live = math.ceil(sum(each.running + each.waiting for each in loads))
        if ttft > aims.ttft_slo and settled and running >= target:
            grown = math.ceil(target * min(FASTEST_GROWTH, ttft / aims.ttft_slo) - ROUNDING)
            need = max(need, min(max(grown, target + 1), live))
        if ttft > aims.ttft_slo * aims.scale_down_usage / aims.target_usage:
            spare = max(spare, target)
    return need if need > target else min(spare, target)


def replicas_for(loads: Sequence[Load], usage: float) -> int:
    """How many replicas of the size of these use at most the share `usage` of their blocks and
    seats for all that these have to do; never more than there are requests to share out."""
    live = sum(each.running + each.waiting for each in loads)
    blocks = sum(each.blocks_used + each.blocks_queued for each in loads)
    room = usage / len(loads)
    by_blocks = blocks / (room * sum(each.blocks for each in loads))
    by_seats = live / (room * sum(each.seats for each in loads))
    return min(math.ceil(max(by_blocks, by_seats) - ROUNDING), math.ceil(live))


def time_to_first_token(loads: Sequence[Load]) -> float:
    """Seconds; each replica counts as much as it has answered."""
    answered = sum(each.answered for each in loads)
    return sum(each.ttft * each.answered for each in loads) / answered if answered else 0.0
