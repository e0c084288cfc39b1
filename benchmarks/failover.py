"""How long a stream stands still when a process under it is killed: from `kill -9` to its next
token, over two replicas that both serve.

    python benchmarks/failover.py [--kinds worker scheduler replica node] [--kills 20] [MODEL]

Starts `octavo serve` with two replicas on a free port; more arguments are passed on to it. For each
kill it opens 8 streams, kills one process of a kind once all have begun, and lets them end. Which
streams were moved is not visible to a client: the server counts how many were, and these are the
ones that stood still longest within a second. A token that was on its way already does not count as
the next one. `back` is the time until two replicas serve again.

`node` has another cluster: a head, with the way in, and two nodes on this machine with one replica
each of a tiny model. All processes of one die at once, and a new node takes its place. Their
connections are closed, as those of a machine that loses its power are not: there, 5 s of silence
are the first sign.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from driver import say
from machine import describe, probe, row
from prefix import server

STREAMS, PROMPT, LENGTH, BEGUN = 8, 64, 400, 20
PATIENCE_SECONDS = 120.0
WITHIN_SECONDS = 1.0
NODE = "node"
TITLES = {
    "worker": "ray::WorkerActor",
    "scheduler": "ray::SchedulerActor",
    "replica": "ray::ServeReplica:octavo:Replica",
}


class Stream:
    """One completion, read in a thread. `stamps` are when its tokens came."""

    def __init__(self, url: str, seed: int) -> None:
        self.stamps: list[float] = []
        self._url = url
        self._seed = seed

    def read(self) -> None:
        source = random.Random(self._seed)
        body = {
            "prompt": [source.randrange(100, 500) for _ in range(PROMPT)],
            "max_tokens": LENGTH,
            "seed": self._seed,
            "ignore_eos": True,
            "logprobs": 0,  # so that each token has its event, whatever its text
            "stream": True,
        }
        count = 0
        rest = b""
        with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=120) as answer:
            for raw in answer.iter_raw():
                now = time.perf_counter()
                *events, rest = (rest + raw).split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: {"):
                        for choice in json.loads(event[6:])["choices"]:
                            count += len(choice["logprobs"]["tokens"])
                            self.stamps.append(now)
        if count != LENGTH:
            raise SystemExit(f"a stream ended after {count} tokens of {LENGTH}")

    def stood_still(self, since: float) -> tuple[float, float]:
        """The longest gap between two tokens that begins within a second, and the time from `since`
        to its end, in seconds."""
        gaps = [
            (after - before, after - since)
            for before, after in pairwise(self.stamps)
            if after > since and before < since + WITHIN_SECONDS
        ]
        return max(gaps, default=(0.0, 0.0))


def resumed(url: str) -> dict[str, float]:
    """Requests that each replica took over, by its name."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    found = re.findall(r'^octavo:requests_resumed_total\{engine="([^"]+)".*\} (\S+)$', text, re.M)
    return {name: float(value) for name, value in found}


@dataclass(frozen=True, slots=True)
class Target:
    """A server with two replicas. `victims` draws the processes that die at once, and `mend` does
    what has to be done before all is as it was."""

    url: str
    victims: Callable[[random.Random], list[psutil.Process]]
    mend: Callable[[], None] = lambda: None


def processes(kind: str) -> list[psutil.Process]:
    """Those of a kind below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = process.cmdline()[:1]
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if title and title[0].startswith(TITLES[kind]):
            found.append(process)
    return found


@contextmanager
def two_nodes() -> Iterator[Target]:
    """A replica of one rank on each of two nodes."""
    from tests.chaos.cluster import LONE, Victim
    from tests.e2e.nodes import Node
    from tests.tiny import make_tiny

    lost: list[Node] = []

    def draw(source: random.Random) -> list[psutil.Process]:
        lost.append(source.choice(cluster.leaves.able(set())))
        return lost[-1].family()

    def mend() -> None:
        cluster.leaves.lose(lost[-1])
        cluster.leaves.replace()

    with tempfile.TemporaryDirectory() as folder:
        cluster = Victim(make_tiny(Path(folder) / "model"), {LONE: 2}, ingresses=1, nodes=2, room=1)
        try:
            asyncio.run(cluster.start())
            yield Target(cluster.url, draw, mend)
        finally:
            cluster.end()


def kill_one(target: Target, seed: int) -> tuple[list[float], float]:
    """How long each moved stream stood still, and how long a replica was missing, in seconds."""
    url = target.url
    before = resumed(url)
    streams = [Stream(url, seed * STREAMS + number) for number in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        reading = [pool.submit(stream.read) for stream in streams]
        while not all(len(stream.stamps) >= BEGUN for stream in streams):
            time.sleep(0.001)
        doomed = target.victims(random.Random(seed))
        killed = time.perf_counter()
        if len(doomed) > 1:  # none of them sees another die
            for process in doomed:
                os.kill(process.pid, signal.SIGSTOP)
        for process in doomed:
            os.kill(process.pid, signal.SIGKILL)
        for future in reading:
            future.result()
    target.mend()
    deadline = killed + PATIENCE_SECONDS
    while len(now := resumed(url)) < 2 or now.keys() == before.keys():
        if time.perf_counter() > deadline:
            raise SystemExit("no new replica came")
        time.sleep(0.05)
    back = time.perf_counter() - killed
    time.sleep(1.0)  # a snapshot is at most half a second old
    moved = int(sum(count - before.get(name, 0) for name, count in resumed(url).items()))
    gaps = sorted((stream.stood_still(killed) for stream in streams), reverse=True)
    longest = gaps[moved][0] if moved < len(gaps) else 0.0
    say(f"{moved} moved; the longest gap of the others was {longest * 1e3:.0f} ms")
    return [end for _, end in gaps[:moved]], back


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def measure(kind: str, target: Target, kills: int) -> None:
    """Prints a row."""
    speed = probe(len(os.sched_getaffinity(0)))
    waits: list[float] = []
    backs: list[float] = []
    for number in range(kills):
        found, back = kill_one(target, 1 + number)
        say(f"{kind} {number}: {[f'{wait * 1e3:.0f} ms' for wait in found]}, {back:.1f} s")
        waits += found
        backs.append(back)
    figures = statistics.median(waits), percentile(waits, 0.99), max(waits)
    shown = (f"{figure * 1e3:.0f}" for figure in figures)
    print(
        row(kind, kills, len(waits), *shown, f"{statistics.median(backs):.1f}", speed), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=(*TITLES, NODE), default=list(TITLES))
    parser.add_argument("--kills", type=int, default=20)
    args, passed_on = parser.parse_known_args()
    print(describe())
    columns = "killed", "times", "streams moved", "median ms", "p99 ms", "longest ms"
    print(row(*columns, "back, median s", "probe"))
    print(row(*["---"] * 8))
    kinds = [kind for kind in args.kinds if kind != NODE]
    if kinds:
        with server(["--num-replicas", "2", *passed_on]) as url:
            targets = {
                kind: Target(url, lambda source, kind=kind: [source.choice(processes(kind))])
                for kind in kinds
            }
            kill_one(targets[kinds[0]], 0)  # what is new to a process is slow once
            for kind, target in targets.items():
                measure(kind, target, args.kills)
    if NODE in args.kinds:
        with two_nodes() as target:
            kill_one(target, 0)
            measure(NODE, target, args.kills)


if __name__ == "__main__":
    main()
