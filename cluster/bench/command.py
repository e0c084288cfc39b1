"""`octavo bench`: which of its three."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def bench(arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Whether anything was measured. Raises `InvalidRequest` for the user's mistakes, and another
    `OctavoError` for other faults."""
    if arguments.bench == "serve":
        from octavo.cluster.bench.serve import bench_serve

        return bench_serve(arguments, say)
    from octavo.cluster.bench.offline import bench_latency, bench_throughput

    if arguments.bench == "throughput":
        return bench_throughput(arguments, say)
    return bench_latency(arguments, say)
