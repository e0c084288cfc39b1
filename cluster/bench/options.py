"""Flags whose values have a form of their own. Each mistake is one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cluster.bench.names import METRICS, OBJECTIVES
from octavo.scheduler.errors import InvalidRequest


def chosen_metrics(given: str | None) -> list[str]:
    """Names of `METRICS`, from `ttft,tpot`; unasked, all that the server decides."""
    if given is None:
        return [name for name in METRICS if name != "client_queue_time"]
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise InvalidRequest(
                "percentile_metrics",
                f"percentile_metrics may have {', '.join(METRICS)}, got {name!r}",
            )
    return names


def chosen_percentiles(given: str) -> list[float]:
    """From `50,99.9`."""
    try:
        found = [float(each) for each in given.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 100 for each in found):
        raise InvalidRequest(
            "metric_percentiles",
            f"metric_percentiles must be numbers of 0 to 100 such as 50,99, got {given!r}",
        )
    return found


def objectives(given: Sequence[str] | None) -> dict[str, float]:
    """Milliseconds by metric, from `ttft:500 tpot:50`."""
    found = {}
    for each in given or ():
        name, colon, value = each.partition(":")
        try:
            most = float(value)
        except ValueError:
            most = -1.0
        if not colon or name not in OBJECTIVES or not most >= 0:
            raise InvalidRequest(
                "goodput",
                "goodput takes milliseconds for ttft, tpot and e2el, such as ttft:500 tpot:50, "
                f"got {each!r}",
            )
        found[name] = most
    return found


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """From `KEY=VALUE` and more."""
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise InvalidRequest(flag, f"{flag} takes KEY=VALUE, got {each!r}")
        found[name.strip()] = value.strip()
    return found
