"""Prometheus text from the engines' own counts.

Everything comes from the latest snapshot of every replica; nothing is counted here. So a scrape
gives the same figures whichever process answers it. The text is written here and not by a library:
a scrape runs between the tokens of all streams, and a library's registry takes eight times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal, get_args

from octavo.cluster.api.metric_families import FAMILIES, Reading, write_labels
from octavo.cluster.stats import EngineStats, Histogram
from octavo.scheduler.errors import InvalidRequest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Spelling = Literal["vllm", "ray"]
"""vLLM's own names; or what becomes of them where vLLM runs in Ray and Ray's agents export them: a
prefix, `_` for `:`, and the labels `ReplicaId` and `WorkerId`, by which Ray's dashboard for models
joins them with Serve's own metrics."""


def read_spelling(asked: str | None) -> Spelling:
    """Of a scrape's parameter `names`. Raises `InvalidRequest`."""
    for spelling in get_args(Spelling):
        if asked in (None, spelling):
            return spelling  # type: ignore[no-any-return]
    known = " or ".join(get_args(Spelling))
    raise InvalidRequest("names", f"names must be {known}, got {asked!r}")


def render_metrics(
    models: Mapping[str, Sequence[EngineStats]], spelling: Spelling = "vllm"
) -> bytes:
    """The text exposition of one scrape: snapshots of all replicas by their model's name. `engine`
    is vLLM's label for what tells engines apart; an engine here is a replica."""
    replicas = [
        (_labels(model, each, spelling), each) for model, stats in models.items() for each in stats
    ]
    lines: list[str] = []
    for family in FAMILIES:
        name = family.name if spelling == "vllm" else f"ray_{family.name.replace(':', '_')}"
        name += "_total" * (family.kind == "counter")
        lines += (f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}")
        for labels, each in replicas:
            lines += _samples(name, labels, family.read(each))
    return ("\n".join(lines) + "\n").encode()


def _labels(model: str, each: EngineStats, spelling: Spelling) -> str:
    labels = {"engine": each.replica, "model_name": model, "replica": each.replica}
    if spelling == "ray":
        labels |= {"ReplicaId": each.replica, "WorkerId": each.worker_id}
    return write_labels(labels)


def _samples(name: str, labels: str, reading: Reading) -> Iterator[str]:
    if isinstance(reading, Histogram):
        # Prometheus' buckets count everything up to their bound.
        counts = list(accumulate(reading.counts))
        for bound, count in zip(reading.bounds, counts, strict=False):
            yield f'{name}_bucket{{{labels},le="{float(bound)}"}} {count}.0'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {counts[-1]}.0'
        yield f"{name}_count{{{labels}}} {counts[-1]}.0"
        yield f"{name}_sum{{{labels}}} {float(reading.sum)}"
    elif isinstance(reading, Mapping):
        for further, value in reading.items():
            yield f"{name}{{{labels},{further}}} {float(value)}"
    else:
        yield f"{name}{{{labels}}} {float(reading)}"
