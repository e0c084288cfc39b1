"""The autoscaling policy that Serve's controller calls: it reads what replicas reported lately, and
leaves the decision to `octavo.cluster.autoscaling`, and bounds and delays to Serve.

A report is a picture of the moment, made by a scheduler; a replica that is gone takes its own with
it. So nothing is counted here that could be miscounted for ever.
"""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from octavo.cluster.autoscaling import Autoscaling, Load, Report, decide
from octavo.cluster.first_tokens import LATELY_SECONDS

REPORT_SECONDS = 2.0
LOOK_BACK_SECONDS = 6.0  # what one report covers
STALE_SECONDS = 15.0


class Policy:
    """`settings` are those of `Autoscaling`. Serve makes one for each deployment."""

    def __init__(self, **settings: Any) -> None:
        self._aims = msgspec.convert(settings, Autoscaling)

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now, running = context.current_time or 0.0, context.current_num_replicas
        state = context.policy_state
        if state.get("running") != running:
            state = {**state, "running": running, "since": now}
        wanted = decide(
            recent_reports(context, now),
            running,
            context.target_num_replicas,
            self._aims,
            settled=now - state["since"] > LATELY_SECONDS,
        )
        return wanted, {name: state[name] for name in ("running", "since")}


def recent_reports(context: AutoscalingContext, now: float) -> list[Report]:
    """Of the replicas that run and have reported lately."""
    pictures: dict[Any, dict[float, dict[str, float]]] = {}  # by replica and time
    for name, series in (context.raw_metrics or {}).items():
        for replica, points in series.items():
            of_replica = pictures.setdefault(replica, {})
            for point in points:
                if now - point.timestamp < STALE_SECONDS:
                    of_replica.setdefault(point.timestamp, {})[name] = point.value
    read = [[Load.read(each) for each in of_one.values()] for of_one in pictures.values()]
    loads = [[load for load in of_one if load is not None] for of_one in read]
    return [Report.of(of_one) for of_one in loads if of_one]


def serve_autoscaling(aims: Autoscaling) -> AutoscalingConfig:
    """What Serve is told of a model that is elastic."""
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function=f"{__name__}:Policy", policy_kwargs=msgspec.structs.asdict(aims)
    )
    with warnings.catch_warnings():
        # The variables that are to take the interval's place one day would have to be set for
        # every process of the cluster, and for all applications alike.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=aims.min_replicas,
            max_replicas=aims.max_replicas,
            upscale_delay_s=aims.upscale_delay_s,
            downscale_delay_s=aims.downscale_delay_s,
            downscale_to_zero_delay_s=aims.downscale_to_zero_delay_s,
            metrics_interval_s=REPORT_SECONDS,
            look_back_period_s=LOOK_BACK_SECONDS,
            policy=policy,
        )
