"""What people ask before they buy or set something, each answered by simulating it.

Every function takes a setup and the requests, and gives a table. Rows are independent runs of the
same requests, so that they differ by what the row says alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from octavo.cluster.simulation.hardware import GIB
from octavo.cluster.simulation.record import Summary
from octavo.cluster.simulation.setup import Setup, simulate
from octavo.cluster.simulation.table import Table
from octavo.cluster.simulation.workload import Job, Series
from octavo.cluster.traces.lengths import Length
from octavo.scheduler.config import PreemptionMode
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.rates import Rates

Slo = dict[str, float]
JobsAt = Callable[[float], Series[Job]]
"""The requests, arriving at so many a second."""
Say = Callable[[str], None]

RARE = 0.01  # preemptions a request, below which a pool is large enough
NEAR = 1.02  # times the least normalized latency that counts as the least


def one_run(setup: Setup, jobs: Series[Job], slo: Slo | None, say: Say) -> Table:
    """All figures of one run."""
    say(f"{len(jobs):,} requests")
    found = simulate(setup, jobs, slo=slo)
    table = Table("One run", ["figure", "mean", "p50", "p90", "p99"])
    for name, spread in (
        ("TTFT, ms", found.ttft),
        ("TPOT, ms", found.tpot),
        ("end to end, ms", found.e2e),
        ("normalized latency, ms a token", found.normalized_latency),
        ("queued, ms", found.queue_time),
    ):
        table.rows.append(
            [name, *(1e3 * each for each in (spread.mean, spread.p50, spread.p90, spread.p99))]
        )
    single: list[tuple[str, float | None]] = [
        ("requests answered", found.requests),
        ("requests refused: they can never fit", found.refused),
        ("requests/s", found.request_throughput),
        ("output tokens/s", found.output_throughput),
        ("all tokens/s", found.total_throughput),
        ("running at once", found.running),
        ("waiting at once", found.waiting),
        ("a step, ms", 1e3 * found.step_seconds),
        ("preemptions a request", found.preemptions_per_request),
        ("prompt tokens found in the cache, %", 100 * found.prefix_hit_rate),
    ]
    if found.goodput is not None:
        single.append(("requests within the objectives, %", 100 * found.goodput))
    if setup.replicas > 1:
        single.append(
            ("tokens computed, most loaded replica over the mean", found.imbalance_tokens)
        )
        single.append(("requests, most loaded replica over the mean", found.imbalance_requests))
    table.rows += [[name, value, None, None, None] for name, value in single]
    return table


def what_fits(setups: Sequence[Setup], lengths: Series[Length]) -> Table:
    """Memory, and how many requests it holds at once, on each kind of device."""
    longest = setups[0].scheduler.max_model_len
    columns = ["device", "memory, GiB", "weights", "workspace", "keys and values", "blocks"]
    columns += ["tokens", f"requests of {longest:,} tokens", "of the workload", "weights read, ms"]
    table = Table("What fits, each device (GiB), each replica (the rest)", columns)
    size = setups[0].scheduler.block_size
    held = _mean_blocks(lengths, size)
    for setup in setups:
        device = setup.hardware
        memory = [device.memory, setup.weight_bytes, setup.workspace_bytes, setup.cache_bytes]
        cells = [f"{each / GIB:.1f}" for each in memory]
        name = f"{setup.ranks} x {device.name}"
        reading = 1e3 * setup.weight_bytes / device.bandwidth / device.bandwidth_share
        try:
            capacity = setup.capacity()
        except InvalidRequest:
            table.rows.append([name, *cells, 0, 0, 0, 0, reading])
            continue
        blocks = capacity.usable_blocks
        each = [blocks // -(-longest // size), int(blocks / held)]
        table.rows.append([name, *cells, blocks, capacity.tokens, *each, reading])
    table.notes.append(
        "A request of the workload counts with the blocks that it holds on average over its "
        "life, longer ones the more as they stay longer."
    )
    return table


def _mean_blocks(lengths: Series[Length], size: int) -> float:
    """Blocks that a running request holds, at a moment drawn at random: one that decodes longer is
    met more often."""
    steps = sum(answer for _, answer in lengths)
    held = sum(answer * (prompt + answer / 2 + size / 2) for prompt, answer in lengths)
    return max(1.0, held / steps / size)


def by_rate(
    setup: Setup, jobs_at: JobsAt, rates: Sequence[float], slo: Slo | None, say: Say
) -> Table:
    """TTFT and latency against the rate of arrivals."""
    table, found = _sweep(
        "Latency against rate",
        "requests/s",
        [(rate, setup, jobs_at(rate)) for rate in rates],
        slo,
        say,
    )
    if slo is not None:
        kept = [rate for rate, each in zip(rates, found, strict=True) if _good(each) >= 0.9]
        most = f"{max(kept):g}" if kept else "none of them"
        table.notes.append(f"Highest rate at which nine of ten keep the objectives: {most}.")
    return table


def by_pool(
    setup: Setup, jobs: Series[Job], shares: Sequence[float], slo: Slo | None, say: Say
) -> Table:
    """The same requests with less and less memory: where the knee is."""
    whole = setup.capacity().usable_blocks
    sizes = [max(_least(setup), int(whole * share)) for share in sorted(set(shares))]
    sizes = list(dict.fromkeys(sizes))
    table, found = _sweep(
        "Latency and preemptions against the pool",
        "blocks",
        [(size, setup.changed(blocks=size), jobs) for size in sizes],
        slo,
        say,
    )
    best = min(each.normalized_latency.mean for each in found)
    knee = next(
        (
            size
            for size, each in zip(sizes, found, strict=True)
            if each.preemptions_per_request <= RARE and _latency(each) <= NEAR * best
        ),
        None,
    )
    table.notes.append(
        "No pool of these is large enough: requests are preempted, or wait, at each of them."
        if knee is None
        else f"The knee is at {knee:,} blocks, {100 * knee / whole:.0f} % of what the device has "
        f"room for: at most {RARE} preemptions a request there, and latency within "
        f"{100 * NEAR - 100:.0f} % of the best."
    )
    return table


def by_block_size(
    setup: Setup, jobs: Series[Job], sizes: Sequence[int], slo: Slo | None, say: Say
) -> Table:
    """The same memory cut into blocks of other sizes."""
    tokens = None if setup.blocks is None else setup.blocks * setup.scheduler.block_size
    rows = []
    for size in sizes:
        changed = setup.changed({"block_size": size}, blocks=tokens and tokens // size)
        rows.append((size, changed, jobs))
    return _sweep("Latency against block size", "block size", rows, slo, say)[0]


def _sweep(
    title: str,
    name: str,
    runs: Sequence[tuple[int | float | str, Setup, Series[Job]]],
    slo: Slo | None,
    say: Say,
) -> tuple[Table, list[Summary]]:
    """One row a run."""
    columns = [name, "TTFT, ms", "p99", "TPOT, ms", "normalized latency, ms", "output tokens/s"]
    columns += ["running", "waiting", "preemptions a request", "found in the cache, %"]
    if slo is not None:
        columns.append("within objectives, %")
    table, summaries = Table(title, columns), []
    for value, setup, jobs in runs:
        say(f"{name} {value}: {len(jobs):,} requests")
        found = simulate(setup, jobs, slo=slo)
        summaries.append(found)
        cells = [found.ttft.mean, found.ttft.p99, found.tpot.mean, _latency(found)]
        row: list[str | int | float | None] = [value, *(1e3 * each for each in cells)]
        row += [found.output_throughput, found.running, found.waiting]
        row += [found.preemptions_per_request, 100 * found.prefix_hit_rate]
        table.rows.append(row if slo is None else [*row, 100 * _good(found)])
        if found.refused:
            table.notes.append(f"{name} {value}: {found.refused} requests can never fit.")
    return table, summaries


def preemption_costs(
    setup: Setup, jobs: Series[Job], lengths: Sequence[int], say: Say
) -> list[Table]:
    """What a preemption costs either way, by length; and what comes of the requests in each
    mode. Nothing is on the host already in the first table, so that all has to be copied."""
    cost, settings = setup.cost(), setup.scheduler
    budget, size = settings.max_num_batched_tokens, settings.block_size
    rates = Rates(cost.block_bytes)
    rates.seconds_a_token = cost.prefill(budget, budget) / budget
    rates.seconds_a_block = cost.copy(1)
    columns = [
        "tokens",
        "recompute, ms",
        "swap, ms",
        "recompute, estimated",
        "swap, estimated",
        "auto takes",
    ]
    table = Table("What one preemption costs", columns)
    crossing = None
    for length in lengths:
        recompute = cost.prefill(length, budget)
        blocks = -(-length // size)
        swap = 2 * cost.copy(blocks)
        if crossing is None and swap < recompute:
            crossing = length
        estimates = rates.recompute(length), rates.swap(blocks, blocks)
        taken = "swap" if estimates[1] < estimates[0] else "recompute"
        ms = (1e3 * each for each in (recompute, swap, *estimates))
        table.rows.append([length, *ms, taken])
    table.notes.append(
        "Computing again is cheaper at all of these lengths."
        if crossing is None
        else f"From {crossing} tokens on, of these, swapping is cheaper."
    )
    modes = list(get_args(PreemptionMode))
    runs = [(mode, setup.changed({"preemption_mode": mode}), jobs) for mode in modes]
    compared, found = _sweep("The requests in each mode", "preemption mode", runs, None, say)
    if not any(each.preemptions for each in found):
        compared.notes.append(
            "Nothing was preempted: ask for less memory (--num-gpu-blocks-override) or a higher "
            "--request-rate."
        )
    elif not setup.host_bytes:
        compared.notes.append("There is no host memory to swap to: set --swap-space.")
    return [table, compared]


def _least(setup: Setup) -> int:
    """Blocks that one request of full length needs."""
    settings = setup.scheduler
    return -(-settings.max_model_len // settings.block_size)


def _latency(found: Summary) -> float:
    return found.normalized_latency.mean


def _good(found: Summary) -> float:
    return found.goodput or 0.0
