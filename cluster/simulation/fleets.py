"""Questions about several replicas: how many it takes, and how to send requests to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from octavo.cluster.simulation.fleet import RoutingPolicy
from octavo.cluster.simulation.record import Summary
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.table import Cell, Table
from octavo.cluster.simulation.workload import Job, Series

Say = Callable[[str], None]


def replicas_for(
    setup: Setup, jobs: Series[Job], slo: dict[str, float], share: float, most: int, say: Say
) -> Table:
    """The fewest replicas with which `share` of the requests keep to the objectives: doubled until
    there are enough, then found by halves, as more are taken never to be worse."""
    tried: dict[int, Summary] = {}

    def enough(count: int) -> bool:
        say(f"{count} replicas: {len(jobs):,} requests")
        tried[count] = simulate(setup.changed(replicas=count), jobs, slo=slo)
        return (tried[count].goodput or 0.0) >= share

    low, high = 0, 1  # not enough, perhaps enough
    while not enough(high):
        if high == most:
            break
        low, high = high, min(most, 2 * high)
    else:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
    columns = ["replicas", "within objectives, %", "TTFT p50, ms", "p99", "TPOT p99, ms"]
    columns += ["running each", "found in the cache, %"]
    table = Table("Replicas for the objectives", columns)
    for count, found in sorted(tried.items()):
        cells: list[Cell] = [count, 100 * (found.goodput or 0.0)]
        cells += [1e3 * each for each in (found.ttft.p50, found.ttft.p99, found.tpot.p99)]
        table.rows.append([*cells, found.running / count, 100 * found.prefix_hit_rate])
    bounds = ", ".join(f"{name} {1e3 * bound:g} ms" for name, bound in slo.items())
    good = (tried[high].goodput or 0.0) >= share
    answer = f"It takes {high}" if good else f"Even {most} are too few"
    table.notes.append(f"{answer} for {100 * share:g} % of the requests to keep {bounds}.")
    return table


def compare_routing(setup: Setup, jobs: Series[Job], counts: Sequence[int], say: Say) -> Table:
    """Each way of sending requests to each number of replicas, the requests being the same."""
    columns = [
        "replicas",
        "routing",
        "found in the cache, %",
        "imbalance: tokens",
        "imbalance: requests",
    ]
    columns += ["TTFT mean, ms", "p50", "p99", "output tokens/s", "preemptions a request"]
    table = Table("Ways of routing", columns)
    for count in counts:
        for policy in get_args(RoutingPolicy) if count > 1 else ("prefix",):
            say(f"{count} replicas, {policy}: {len(jobs):,} requests")
            found = simulate(setup.changed(replicas=count, routing=policy), jobs)
            row: list[Cell] = [count, policy if count > 1 else "-", 100 * found.prefix_hit_rate]
            row += [found.imbalance_tokens, found.imbalance_requests]
            row += [1e3 * each for each in (found.ttft.mean, found.ttft.p50, found.ttft.p99)]
            table.rows.append([*row, found.output_throughput, found.preemptions_per_request])
    return table
