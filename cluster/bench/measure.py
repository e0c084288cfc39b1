"""Statistics of a run, defined as `vllm bench serve` defines them.

TTFT is from sending to the first token; TPOT is a request's mean time a token after the first,
known where there are two; ITL is every gap between two events that brought tokens; E2EL is from
sending to the last token. Waiting for `--max-concurrency` is none of them. Normalized latency is
the PagedAttention paper's: E2EL divided by the number of tokens.

Two things differ from vLLM. The peak of concurrent requests is of requests that were in flight at
the same moment, where vLLM counts those that were within the same second. And a chunk of a chat
that only says who speaks is no token, where vLLM takes it for the first: some servers send it at
once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.names import METRICS


@dataclass(frozen=True, slots=True)
class Spread:
    """In milliseconds; zeros where there was nothing to measure."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """`goodput` is requests a second that met all objectives, None where there are none;
    throughputs are a second over the whole run."""

    completed: int
    failed: int
    duration: float
    input_tokens: int
    output_tokens: int
    request_throughput: float
    goodput: float | None
    output_throughput: float
    total_throughput: float
    peak_output_throughput: float
    peak_concurrency: int
    spreads: Mapping[str, Spread]


def measure(
    answers: Sequence[Answer],
    duration: float,
    percentiles: Sequence[float],
    objectives: Mapping[str, float] | None = None,
) -> Measured:
    """`objectives` are upper bounds in milliseconds, of `ttft`, `tpot` and `e2el`."""
    good = [answer for answer in answers if not answer.error]
    tokens_in = sum(answer.prompt_len for answer in good)
    tokens_out = sum(answer.output_len for answer in good)
    met = None
    if objectives:
        met = sum(
            all(_of(a, name) * 1e3 <= most for name, most in objectives.items()) for a in good
        )
    return Measured(
        completed=len(good),
        failed=len(answers) - len(good),
        duration=duration,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        request_throughput=len(good) / duration,
        goodput=None if met is None else met / duration,
        output_throughput=tokens_out / duration,
        total_throughput=(tokens_in + tokens_out) / duration,
        peak_output_throughput=_busiest_second(good),
        peak_concurrency=_most_at_once(good),
        spreads={name: spread(series(good, name), percentiles) for name in METRICS},
    )


def series(answers: Sequence[Answer], name: str) -> list[float]:
    """Seconds, of answers that have the metric."""
    if name == "itl":
        return [gap for answer in answers for gap in answer.itls]
    if name == "tpot":
        return [answer.tpot for answer in answers if answer.output_len > 1]
    if name == "normalized_latency":
        return [answer.latency / answer.output_len for answer in answers if answer.output_len]
    return [_of(answer, name) for answer in answers]


def spread(values: Sequence[float], percentiles: Sequence[float]) -> Spread:
    """Of seconds, in milliseconds. Percentiles are interpolated between the two nearest."""
    taken = np.asarray(values if len(values) else [0.0]) * 1e3
    return Spread(
        float(taken.mean()),
        float(np.median(taken)),
        float(taken.std()),
        tuple((each, float(np.percentile(taken, each))) for each in percentiles),
    )


def per_second(answers: Sequence[Answer]) -> np.ndarray:
    """Events that brought tokens in each second after the first request was sent."""
    if not answers:
        return np.zeros(0, dtype=int)
    start = min(answer.sent for answer in answers)
    times = [answer.sent - start + np.cumsum([answer.ttft, *answer.itls]) for answer in answers]
    return np.bincount(np.concatenate(times).astype(int))


def in_flight(answers: Sequence[Answer]) -> tuple[np.ndarray, np.ndarray]:
    """Moments in seconds after the first request was sent, and how many were in flight from each
    on. One that ends as another begins is not counted beside it."""
    start = min((answer.sent for answer in answers), default=0.0)
    begins = [(answer.sent - start, 1) for answer in answers]
    ends = [(answer.sent + answer.latency - start, -1) for answer in answers]
    moments = sorted(begins + ends)
    times = np.array([moment for moment, _ in moments])
    return times, np.cumsum([change for _, change in moments], dtype=int)


def _of(answer: Answer, name: str) -> float:
    match name:
        case "ttft":
            return answer.ttft
        case "tpot":
            return answer.tpot
        case "e2el":
            return answer.latency
        case "client_queue_time":
            return answer.waited
    raise AssertionError(name)


def _busiest_second(answers: Sequence[Answer]) -> float:
    return float(max(per_second(answers), default=0))


def _most_at_once(answers: Sequence[Answer]) -> int:
    _, counts = in_flight(answers)
    return int(max(counts, default=0))


def word(percentile: float) -> str:
    """99 for 99.0, 99.9 for 99.9."""
    return f"{percentile:.0f}" if math.isclose(percentile, round(percentile)) else str(percentile)
