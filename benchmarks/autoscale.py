"""How replicas and the time to first token follow a load that comes and goes.

    python benchmarks/autoscale.py [--rate 1.5] [--quiet 10] [--busy 90] [--plot FILE] [MODEL]

Starts Ray with a dashboard, deploys one model as `octavo deploy` does, with autoscaling from zero
to `--most` replicas, and waits until it sleeps. Then requests arrive at random at `--rate` a
second for `--busy` seconds: the first one wakes a replica, and more come while much waits. After
the last answer it waits until no replica is left. Each replica runs `--seats` sequences at once,
so that the load of a small machine fills it. Prints a table and draws a plot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from driver import say
from machine import describe, probe, row

from octavo.cluster.deployments import IMPORT_PATH, read_details

NAME, PROMPT = "elastic", 32
SAMPLE_SECONDS, REST_SECONDS = 0.5, 180.0
ROW_SECONDS = 15.0


@dataclass
class Run:
    """Seconds since the load began. `counts` are replicas that run and replicas that are wanted;
    `asked` is when each request came, and after how long its first token; None where it failed."""

    began: float = 0.0
    counts: list[tuple[float, int, int]] = field(default_factory=list)
    asked: list[tuple[float, float | None]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def now(self) -> float:
        return time.perf_counter() - self.began


async def ask(client: httpx.AsyncClient, run: Run, seed: int, tokens: int) -> None:
    source = random.Random(seed)
    prompt = [source.randrange(100, 500) for _ in range(PROMPT)]
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "seed": seed}
    came, first, count = run.now(), None, 0
    try:
        more = {"ignore_eos": True, "logprobs": 0, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body | more) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    first = run.now() - came if first is None else first
                    for choice in json.loads(line[6:])["choices"]:
                        count += len(choice["logprobs"]["tokens"])
        if count != tokens:
            raise ValueError(f"{count} tokens of {tokens}")
    except (httpx.HTTPError, KeyError, ValueError) as error:
        run.failures.append(f"{type(error).__name__}: {error}")
        first = None
    run.asked.append((came, first))


async def watch(serve: Any, run: Run) -> None:
    """Samples the number of replicas until cancelled."""
    while True:
        details = await asyncio.to_thread(serve.details)
        [model] = read_details(details)[0][0].models
        run.counts.append((run.now(), model.running, model.target))
        await asyncio.sleep(SAMPLE_SECONDS)


async def load(serve: Any, url: str, args: argparse.Namespace) -> Run:
    run = Run(time.perf_counter() + args.quiet)
    watching = asyncio.create_task(watch(serve, run))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        await asyncio.sleep(args.quiet)
        source = random.Random(0)
        async with asyncio.TaskGroup() as asking:
            number = 0
            while run.now() < args.busy:
                asking.create_task(ask(client, run, number, args.tokens))
                number += 1
                await asyncio.sleep(source.expovariate(args.rate))
    answered = run.now()
    say(f"all {number} are answered after {answered:.1f} s")
    while run.counts[-1][1] and run.now() < answered + REST_SECONDS:
        await asyncio.sleep(SAMPLE_SECONDS)
    await asyncio.sleep(args.quiet)
    watching.cancel()
    return run


def report(run: Run) -> None:
    columns = "seconds", "replicas", "requests", "failed", "first token, median s", "slowest s"
    print(row(*columns))
    print(row(*["---"] * len(columns)))
    start = 0.0
    while any(came >= start for came, _ in run.asked):
        end = start + ROW_SECONDS
        firsts = [first for came, first in run.asked if start <= came < end]
        had = [first for first in firsts if first is not None]
        counts = [running for at, running, _ in run.counts if start <= at < end]
        values = [f"{min(counts)}-{max(counts)}", str(len(firsts)), str(len(firsts) - len(had))]
        values += [f"{statistics.median(had):.2f}", f"{max(had):.2f}"] if had else ["-", "-"]
        print(row(f"{start:.0f}-{end:.0f}", *values))
        start = end
    none = [at for at, running, _ in run.counts if not running and at > run.asked[-1][0]]
    print(f"\nno replica is left after {none[0]:.0f} s" if none else "\nreplicas are left")
    for failure in run.failures[:5]:
        print(f"failed: {failure}")


def draw(run: Run, busy: float, title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, sharex=True, figsize=(7, 4.5), height_ratios=(1, 2), layout="constrained"
    )
    at = [time for time, _, _ in run.counts]
    above.step(at, [each for _, _, each in run.counts], "0.6", where="post", label="wanted")
    above.step(at, [each for _, each, _ in run.counts], "k", where="post", label="running")
    above.set_ylabel("replicas")
    above.yaxis.get_major_locator().set_params(integer=True)
    above.legend(fontsize=8)
    came = [(at, first) for at, first in run.asked if first is not None]
    below.plot(*zip(*came, strict=True), "k.", markersize=2)
    below.set_yscale("log")
    below.set_ylabel("time to first token, s")
    below.set_xlabel("s since the first request")
    for axes in (above, below):
        axes.axvspan(0, busy, color="0.93")
        axes.grid(which="major", alpha=0.3)
    above.set_title(title, fontsize=10)
    figure.savefig(file, dpi=100, metadata={"Software": None})


def config(args: argparse.Namespace, port: int) -> dict[str, Any]:
    model = {
        **{"model": args.model, "served_model_name": NAME, "dtype": args.dtype, "num_threads": 1},
        "max_model_len": PROMPT + args.tokens,
        **{"max_num_seqs": args.seats, "kv_cache_memory_bytes": "32MiB", "drain_timeout": 60},
        "autoscaling": {
            **{"min_replicas": 0, "max_replicas": args.most, "ttft_slo": args.ttft_slo},
            **{"upscale_delay_s": 2, "downscale_delay_s": 10, "downscale_to_zero_delay_s": 20},
        },
    }
    application = {"name": "a", "import_path": IMPORT_PATH, "args": {"models": [model]}}
    return {"http_options": {"port": port}, "applications": [application]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a directory; default: the embedded model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rate", type=float, default=1.5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seats", type=int, default=2)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--ttft-slo", type=float, default=1.0)
    parser.add_argument("--quiet", type=float, default=10.0)
    parser.add_argument("--busy", type=float, default=90.0)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--dashboard-port", type=int, default=8266)
    parser.add_argument("--plot", type=Path, default=Path(__file__).with_name("autoscale.png"))
    args = parser.parse_args()
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    from octavo.cluster.distributed.serve_rest import ServeRest

    folder = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")  # Ray's sockets: short paths
    ray.init(
        **{"address": "local", "num_cpus": 4 * args.most, "include_dashboard": True},
        **{"dashboard_host": "127.0.0.1", "dashboard_port": args.dashboard_port},
        **{"object_store_memory": 128 * 2**20, "_temp_dir": folder},
        **{"log_to_driver": False, "logging_level": "ERROR"},
    )
    try:
        serve = ServeRest(f"http://127.0.0.1:{args.dashboard_port}")
        serve.deploy(config(args, args.port))
        while not (seen := read_details(serve.details())[0]) or not seen[0].healthy:
            time.sleep(SAMPLE_SECONDS)
        say("deployed; no replica runs")
        run = asyncio.run(load(serve, f"http://127.0.0.1:{args.port}", args))
    finally:
        ray.shutdown()
    print(describe() + "; " + probe(len(os.sched_getaffinity(0))) + "\n")
    report(run)
    words = f"{args.rate:g} requests a second for {args.busy:g} s, {args.tokens} tokens each"
    draw(run, args.busy, f"{words}; {args.seats} at once on a replica", args.plot)
    if run.failures:
        raise SystemExit(f"{len(run.failures)} requests failed")


if __name__ == "__main__":
    main()
