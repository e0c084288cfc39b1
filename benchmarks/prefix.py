"""What a shared prefix saves, through the server: one prefix for all requests, or one for each.

64 requests, 16 in flight, 512 prefix tokens and 32 of their own, 64 tokens out, all random token
ids. Counts come from the server's own metrics, before and after; times are the client's.

    python benchmarks/prefix.py [--url http://127.0.0.1:8000]

`peak blocks` are those that requests held at once; `blocks kept` is what the run left findable in
the cache. Without `--url` it starts `octavo serve` on a free port and stops it again; more
arguments are then passed on to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from machine import describe, probe, row

IN_FLIGHT, PREFIX, SUFFIX, OUTPUT = 16, 512, 32, 64
START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Read from /metrics, summed over replicas. `peak_blocks` is the highest since the start;
    `kept_blocks` are free ones whose content can still be found."""

    prompt: float
    computed: float
    generated: float
    live: float
    preemptions: float
    peak_blocks: float
    kept_blocks: float

    @classmethod
    def read(cls, url: str) -> Counts:
        text = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
        return cls(
            prompt=metric(text, "vllm:prompt_tokens_total"),
            computed=metric(text, "octavo:prompt_tokens_computed_total"),
            generated=metric(text, "vllm:generation_tokens_total"),
            live=metric(text, "vllm:num_requests_running"),
            preemptions=metric(text, "vllm:num_preemptions_total"),
            peak_blocks=metric(text, "octavo:kv_blocks_used_peak"),
            kept_blocks=metric(text, "octavo:kv_blocks_cached"),
        )

    @classmethod
    def after(cls, url: str, before: Counts, generated: int) -> Counts:
        """Once the server's snapshots have caught up with what the client has seen."""
        for _ in range(100):
            now = cls.read(url)
            if now.generated - before.generated >= generated and not now.live:
                return now
            time.sleep(0.1)
        raise SystemExit("the server's metrics do not add up to what it answered")


def metric(text: str, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)", text, re.MULTILINE)
    if not found:
        raise SystemExit(f"the server has no metric {name}")
    return sum(map(float, found))


def prompts(requests: int, prefixes: int, seed: int) -> list[list[int]]:
    source = random.Random(seed)

    def some(count: int) -> list[int]:
        return [source.randrange(100, 40_000) for _ in range(count)]

    shared = [some(PREFIX) for _ in range(prefixes)]
    return [shared[i % prefixes] + some(SUFFIX) for i in range(requests)]


async def request(
    client: httpx.AsyncClient, model: str, prompt: list[int], output: int
) -> tuple[float, float]:
    """Seconds to the first event and to the end of one streamed completion."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin = time.perf_counter()
    first, usage = None, None
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"status {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if first is None and event["choices"]:
                first = time.perf_counter() - begin
            usage = event.get("usage") or usage
    if first is None or usage is None or usage["completion_tokens"] != output:
        raise SystemExit(f"a request did not give its {output} tokens: usage {usage}")
    return first, time.perf_counter() - begin


async def run(url: str, model: str, batch: list[list[int]], output: int) -> tuple[float, float]:
    """Mean seconds to the first token, and output tokens a second over all."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def one(prompt: list[int]) -> float:
            async with gate:
                return (await request(client, model, prompt, output))[0]

        begin = time.perf_counter()
        firsts = await asyncio.gather(*map(one, batch))
        wall = time.perf_counter() - begin
    return statistics.mean(firsts), len(batch) * output / wall


@contextmanager
def server(arguments: list[str]) -> Iterator[str]:
    """An Octavo of our own, ready; stopped as a person would, with Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    octavo = [sys.executable, "-m", "octavo.cluster.cli.main"]
    command = [*octavo, "serve", "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start")
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def measure(url: str, requests: int, seed: int) -> None:
    model = httpx.get(f"{url}/v1/models", timeout=30).raise_for_status().json()["data"][0]["id"]
    before = Counts.read(url)
    asyncio.run(run(url, model, prompts(2, 2, seed=seed + 1), 4))  # a first request may be slow
    before = Counts.after(url, before, 2 * 4)
    print(describe())
    columns = "prefixes", "prompt tokens", "computed", "mean TTFT ms", "peak blocks", "blocks kept"
    print(row(*columns, "tok/s", "preemptions", "probe"))
    print(row(*["---"] * 9))
    for prefixes in (1, requests):  # fewest blocks first: the server's peak only rises
        speed = probe(len(os.sched_getaffinity(0)))
        first, rate = asyncio.run(run(url, model, prompts(requests, prefixes, seed), OUTPUT))
        after = Counts.after(url, before, requests * OUTPUT)
        print(
            row(
                prefixes,
                f"{after.prompt - before.prompt:.0f}",
                f"{after.computed - before.computed:.0f}",
                f"{first * 1e3:.0f}",
                f"{after.peak_blocks:.0f}",
                f"{after.kept_blocks - before.kept_blocks:.0f}",
                f"{rate:.0f}",
                f"{after.preemptions - before.preemptions:.0f}",
                speed,
            )
        )
        before = after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a running server that has served nothing yet")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    args, passed_on = parser.parse_known_args()
    if args.url:
        measure(args.url.rstrip("/"), args.requests, args.seed)
        return
    with server(passed_on) as url:
        measure(url, args.requests, args.seed)


if __name__ == "__main__":
    main()
