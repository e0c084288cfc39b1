"""The autoscaling policy that Serve's controller calls: it reads the replicas' latest reports and
leaves the decision to `octavo.cluster.autoscaling`, and bounds and delays to Serve.

A report is a picture of the moment, made by a scheduler; a replica that is gone takes its own with
it. So nothing is counted here that could be miscounted for ever.
"""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from octavo.cluster.autoscaling import Autoscaling, Load, decide
from octavo.cluster.first_tokens import LATELY_SECONDS

REPORT_SECONDS = 2.0
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
            latest_loads(context, now),
            running,
            context.target_num_replicas,
            self._aims,
            settled=now - state["since"] > LATELY_SECONDS,
        )
        return wanted, {name: state[name] for name in ("running", "since")}


def latest_loads(context: AutoscalingContext, now: float) -> list[Load]:
    """Of the replicas that run and have reported lately."""
    reports: dict[Any, dict[str, float]] = {}
    for name, series in (context.raw_metrics or {}).items():
        for replica, points in series.items():
            if points and now - points[-1].timestamp < STALE_SECONDS:
                reports.setdefault(replica, {})[name] = points[-1].value
    loads = [Load.read(report) for report in reports.values()]
    return [load for load in loads if load is not None]


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
            look_back_period_s=3 * REPORT_SECONDS,
            policy=policy,
        )
