"""What a run says at its end: the table on the terminal and the JSON, both laid out as vLLM's."""

from __future__ import annotations

import datetime
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cluster.bench.load import Run
from octavo.cluster.bench.measure import Measured, word
from octavo.cluster.bench.names import METRICS
from octavo.scheduler.errors import InvalidRequest

WIDTH, LABEL = 50, 40
BUSY = 0.7  # share of a core above which the load's own client may be what is measured


def table(
    measured: Measured,
    run: Run,
    metrics: Sequence[str],
    *,
    max_concurrency: int | None,
    request_rate: float,
) -> str:
    """Many lines. `metrics` are names of `METRICS`."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines += [
        _line(label, value) for label, value in _totals(measured, max_concurrency, request_rate)
    ]
    for name in metrics:
        short, title = METRICS[name]
        spread = measured.spreads[name]
        lines.append(f"{title:-^{WIDTH}}")
        lines.append(_line(f"Mean {short} (ms):", spread.mean))
        lines.append(_line(f"Median {short} (ms):", spread.median))
        for percentile, value in spread.percentiles:
            lines.append(_line(f"P{word(percentile)} {short} (ms):", value))
    cache = list(_cache(run))
    if cache:
        lines.append(f"{'Server':-^{WIDTH}}")
        lines += [_line(label, value) for label, value in cache]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def notes(measured: Measured, run: Run) -> Iterator[str]:
    """What should be known before the figures are believed."""
    errors: dict[str, int] = {}
    for answer in run.answers:
        if answer.error:
            errors[answer.error] = errors.get(answer.error, 0) + 1
    common = sorted(errors.items(), key=lambda each: -each[1])
    for error, count in common[:5]:
        yield f"{count} request(s) failed: {error}"
    share = run.processor / run.duration if run.duration else 0.0
    if share > BUSY:
        yield (
            f"the load itself took {share:.0%} of one core, so it may be what was measured; run "
            "several, or one on a machine of its own"
        )


def summary(measured: Measured, run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    """vLLM's keys, and of ours `peak_kv_cache_usage`, `prefix_cache_hit_rate`, `num_preemptions`
    and `client_cpu_share`."""
    found: dict[str, Any] = {
        "duration": measured.duration,
        "completed": measured.completed,
        "failed": measured.failed,
        "total_input_tokens": measured.input_tokens,
        "total_output_tokens": measured.output_tokens,
        "request_throughput": measured.request_throughput,
        "request_goodput": measured.goodput,
        "output_throughput": measured.output_throughput,
        "total_token_throughput": measured.total_throughput,
        "max_output_tokens_per_s": measured.peak_output_throughput,
        "max_concurrent_requests": measured.peak_concurrency,
    }
    for name in metrics:
        spread = measured.spreads[name]
        found[f"mean_{name}_ms"] = spread.mean
        found[f"median_{name}_ms"] = spread.median
        found[f"std_{name}_ms"] = spread.std
        for percentile, value in spread.percentiles:
            found[f"p{word(percentile)}_{name}_ms"] = value
    found["peak_kv_cache_usage"] = run.cache.peak_usage
    found["prefix_cache_hit_rate"] = run.cache.hit_rate
    found["num_preemptions"] = run.cache.preemptions
    found["client_cpu_share"] = run.processor / run.duration if run.duration else None
    return found


def details(run: Run) -> dict[str, Any]:
    """vLLM's keys for what there is one of for each request."""
    answers = run.answers
    return {
        "input_lens": [each.prompt_len for each in answers],
        "output_lens": [each.output_len for each in answers],
        "ttfts": [each.ttft for each in answers],
        "itls": [each.itls for each in answers],
        "latencies": [each.latency for each in answers],
        "start_times": [each.sent for each in answers],
        "queue_times": [each.waited for each in answers],
        "generated_texts": [each.text for each in answers],
        "errors": [each.error for each in answers],
    }


def result_path(
    directory: str | None,
    filename: str | None,
    *,
    label: str,
    request_rate: float,
    max_concurrency: int | None,
    model: str,
    now: datetime.datetime,
) -> Path:
    """vLLM's name for the file, unless one is given."""
    concurrency = "" if max_concurrency is None else f"-concurrency{max_concurrency}"
    name = filename or (
        f"{label}-{request_rate}qps{concurrency}-{model.rpartition('/')[2]}-"
        f"{now:%Y%m%d-%H%M%S}.json"
    )
    return Path(directory or "") / name


def check_folder(folder: Path, flag: str) -> None:
    """Raises `InvalidRequest` where no file could be written there, before anything is run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        why, spelled = (error.strerror or "").lower(), flag.replace("_", "-")
        raise InvalidRequest(
            flag, f"cannot write into {folder}: {why}; choose another --{spelled}"
        ) from None


def save(path: Path, result: Mapping[str, Any], *, append: bool = False) -> None:
    """Writes one line of JSON, after what is there if it is to be appended. Raises `InvalidRequest`
    where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w") as file:
            if append and file.tell():
                file.write("\n")
            json.dump(result, file)
    except OSError as error:
        raise InvalidRequest(
            "result_dir", f"cannot write {path}: {error.strerror}; choose another --result-dir"
        ) from None


def _totals(
    measured: Measured, max_concurrency: int | None, request_rate: float
) -> Iterator[tuple[str, float]]:
    yield "Successful requests:", measured.completed
    yield "Failed requests:", measured.failed
    if max_concurrency is not None:
        yield "Maximum request concurrency:", max_concurrency
    if request_rate != float("inf"):
        yield "Request rate configured (RPS):", float(request_rate)
    yield "Benchmark duration (s):", measured.duration
    yield "Total input tokens:", measured.input_tokens
    yield "Total generated tokens:", measured.output_tokens
    yield "Request throughput (req/s):", measured.request_throughput
    if measured.goodput is not None:
        yield "Request goodput (req/s):", measured.goodput
    yield "Output token throughput (tok/s):", measured.output_throughput
    yield "Peak output token throughput (tok/s):", measured.peak_output_throughput
    yield "Peak concurrent requests:", float(measured.peak_concurrency)
    yield "Total token throughput (tok/s):", measured.total_throughput


def _cache(run: Run) -> Iterator[tuple[str, float]]:
    if run.cache.peak_usage is not None:
        yield "Peak KV cache usage (%):", run.cache.peak_usage * 100
    if run.cache.hit_rate is not None:
        yield "Prefix cache hit rate (%):", run.cache.hit_rate * 100
    if run.cache.preemptions is not None:
        yield "Preemptions:", int(run.cache.preemptions)


def _line(label: str, value: float) -> str:
    shown = str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{label:<{LABEL}} {shown:<10}"
