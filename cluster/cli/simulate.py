"""`octavo simulate`: from flags to a setup and requests, and from an answer to text and JSON."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from octavo.cluster.bench.options import objectives
from octavo.cluster.cli.console import Console
from octavo.cluster.simulation import fleets, questions
from octavo.cluster.simulation.hardware import Hardware, find_hardware
from octavo.cluster.simulation.models import find_model
from octavo.cluster.simulation.progress import Told
from octavo.cluster.simulation.setup import Setup
from octavo.cluster.simulation.table import Table
from octavo.cluster.simulation.traces import Trace, read_trace
from octavo.cluster.simulation.workload import (
    SAMPLE,
    Arrivals,
    Job,
    Jobs,
    Lengths,
    Series,
)
from octavo.cluster.traces.lengths import PAPER_MEANS, Length
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.errors import InvalidRequest

LONGEST = 16_384  # unless asked for: of a long context few workloads make use
PROMPTS = 1000
DEFAULT_OBJECTIVES = {"ttft": 1.0}  # seconds


def simulate(arguments: argparse.Namespace, console: Console) -> None:
    """Prints the answer. Raises `InvalidRequest` naming the flag that is wrong."""
    setups = [_setup(arguments, find_hardware(name)) for name in arguments.hardware]
    setup = setups[0]
    slo = {name: most / 1e3 for name, most in objectives(arguments.goodput).items()} or None
    if len(setups) > 1 and arguments.question != "fit":
        raise InvalidRequest("hardware", "--hardware takes one name, but for the question fit")
    workload = _Workload(arguments, setup.scheduler.max_model_len)
    began = time.monotonic()
    tables = _answer(arguments, setups, workload, slo, console.say)
    lines = [_describe(setup), workload.described, ""]
    print("\n".join(lines) + "\n\n".join(table.text() for table in tables))
    console.say(f"simulated in {time.monotonic() - began:.1f} s")
    if arguments.save_result is not None:
        _save(Path(arguments.save_result), arguments, tables)


def _answer(
    arguments: argparse.Namespace,
    setups: Sequence[Setup],
    workload: _Workload,
    slo: dict[str, float] | None,
    say: Callable[[str], None],
) -> list[Table]:
    setup = setups[0]
    rates = arguments.request_rate
    if rates is not None and len(rates) > 1 and arguments.question != "rate":
        raise InvalidRequest(
            "request_rate", "--request-rate takes one number, but for the question rate"
        )
    if len(arguments.num_replicas) > 1 and arguments.question != "routing":
        raise InvalidRequest(
            "num_replicas", "--num-replicas takes one number, but for the question routing"
        )
    rate = rates[0] if rates else None

    def jobs_at(rate: float | None) -> Series[Job]:
        return Told(workload.at(rate), say)

    match arguments.question:
        case "fit":
            return [questions.what_fits(setups, workload.lengths)]
        case "rate":
            return [questions.by_rate(setup, jobs_at, rates or [1.0, 2.0, 4.0, 8.0], slo, say)]
        case "pool":
            shares = arguments.pool_shares
            return [questions.by_pool(setup, jobs_at(rate), shares, slo, say)]
        case "block-size":
            sizes = arguments.block_sizes
            return [questions.by_block_size(setup, jobs_at(rate), sizes, slo, say)]
        case "preemption":
            return questions.preemption_costs(setup, jobs_at(rate), arguments.lengths, say)
        case "replicas":
            aims = slo or DEFAULT_OBJECTIVES
            most, share = arguments.max_replicas, arguments.share
            return [fleets.replicas_for(setup, jobs_at(rate), aims, share, most, say)]
        case "routing":
            counts = arguments.num_replicas
            return [fleets.compare_routing(setup, jobs_at(rate), counts, say)]
        case _:
            return [questions.one_run(setup, jobs_at(rate), slo, say)]


def _setup(arguments: argparse.Namespace, hardware: Hardware) -> Setup:
    model = find_model(arguments.model)
    ranks = arguments.tensor_parallel_size
    if model.heads % ranks or model.intermediate % ranks:
        raise InvalidRequest(
            "tensor_parallel_size",
            f"--tensor-parallel-size {ranks} does not divide the {model.heads} heads of "
            f"{model.name}, or its feed-forward layer of {model.intermediate}",
        )
    if not 0 < arguments.gpu_memory_utilization <= 1:
        raise InvalidRequest(
            "gpu_memory_utilization",
            "--gpu-memory-utilization must be above 0 and at most 1, "
            f"got {arguments.gpu_memory_utilization}",
        )
    if not 0 <= arguments.swap_space < math.inf:
        raise InvalidRequest(
            "swap_space",
            f"--swap-space must be a number of GiB, 0 or more, got {arguments.swap_space}",
        )
    paged = arguments.allocation == "paged"
    settings = SchedulerConfig(
        max_model_len=arguments.max_model_len or min(model.context, LONGEST),
        block_size=arguments.block_size,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        enable_prefix_caching=arguments.enable_prefix_caching and paged,
        watermark_low=arguments.watermark_low,
        watermark_high=arguments.watermark_high,
        max_num_queued_reqs=2**31,  # nobody is turned away, so that all latencies are seen
        preemption_mode=arguments.preemption_mode,
        allocation=arguments.allocation,
    )
    sampling: dict[str, int] = {"n": arguments.n}
    if arguments.beam_width is not None:
        sampling["beam_width"] = arguments.beam_width
    return Setup(
        hardware,
        model,
        settings,
        ranks=ranks,
        replicas=arguments.num_replicas[0],
        blocks=arguments.num_gpu_blocks_override,
        utilization=arguments.gpu_memory_utilization,
        host_bytes=arguments.swap_space * 2**30,
        paged=paged,
        grain=arguments.grain,
        routing=arguments.routing,
        seed=arguments.seed,
        sampling=sampling,
    )


class _Workload:
    """Recorded requests, or drawn ones."""

    def __init__(self, arguments: argparse.Namespace, longest: int) -> None:
        self._arguments = arguments
        self._trace: Trace | None = None
        self.lengths: Series[Length]
        count = arguments.num_prompts
        if arguments.dataset_path is not None:
            path, block = Path(arguments.dataset_path), arguments.timed_trace_chunk_hash_size
            self._trace = read_trace(path, count, block)
            self.lengths = self._trace.lengths
            origin = path.name
        else:
            name = arguments.dataset_name
            means = PAPER_MEANS.get(name, (arguments.random_input_len, arguments.random_output_len))
            spread = 1.0 if name == "random" else 2.0
            self.lengths = Lengths(means, count or PROMPTS, arguments.seed, longest, spread)
            origin = f"{name}, lengths drawn"
        some = list(islice(self.lengths, SAMPLE))
        prompt, answer = (sum(each) / len(some) for each in zip(*some, strict=True))
        self.described = (
            f"{len(self.lengths):,} requests ({origin}): mean prompt {prompt:.0f}, mean answer "
            f"{answer:.0f} tokens"
        )

    def at(self, rate: float | None) -> Series[Job]:
        """The requests, so many a second, or when the file says."""
        arguments, trace = self._arguments, self._trace
        if rate is None and trace is not None and trace.timed:
            return trace.jobs
        arrivals = Arrivals(rate or 1.0, len(self.lengths), arguments.seed, arguments.burstiness)
        if trace is not None:
            return [
                Job(job.number, at, job.prompt, job.answer, job.pieces)
                for job, at in zip(trace.jobs, arrivals, strict=True)
            ]
        prefix, groups = arguments.prefix_len, arguments.num_prefixes
        return Jobs(self.lengths, arrivals, prefix, groups, arguments.seed)


def _describe(setup: Setup) -> str:
    replicas = f"{setup.replicas} replicas of " if setup.replicas > 1 else ""
    coarse = f", {setup.grain} tokens simulated as one" if setup.grain > 1 else ""
    return (
        f"{replicas}{setup.model.name} on {setup.ranks} x {setup.hardware.name}, blocks of "
        f"{setup.scheduler.block_size}, {setup.scheduler.allocation}{coarse}"
    )


def _save(path: Path, arguments: argparse.Namespace, tables: Sequence[Table]) -> None:
    given = {name: value for name, value in vars(arguments).items() if name != "command"}
    content = {"arguments": given, "tables": [table.plain() for table in tables]}
    try:
        path.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise InvalidRequest(
            "save_result",
            f"--save-result {path} cannot be written: {(error.strerror or str(error)).lower()}",
        ) from None
