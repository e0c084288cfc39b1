"""Where the router sends a trace's requests: blocks found in caches, and load, on 1 to 8 replicas.

The router's own code, its block index and digests included, over replicas without engines: each is
a pool of blocks as the engine's (`octavo.scheduler.blocks`), one prompt at a time computed at a
fixed rate in the order of arrival, and answers of 30 ms a token. The rate is such that all replicas
together are busy for `--busy` of the trace's time with what an unbounded cache would not find.
Replicas report every half second, as real ones do.

    python benchmarks/routing.py --trace mooncake_conversation.jsonl.gz [--trace ...]
    python benchmarks/routing.py --cost

A trace is a file of Mooncake (FAST 2025): a JSON object a line with `timestamp` in ms, lengths, and
the ids of the prompt's blocks of 512 tokens, `hash_ids`. Imbalance is the most loaded replica's
share over the mean, of tokens computed and of requests. `--cost` measures a decision's time.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import itertools
import json
import random
import statistics
import struct
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

from machine import describe, probe, row

from octavo.cluster.routing.names import names_of
from octavo.cluster.routing.routing import Routing
from octavo.scheduler.allocation import Reservation
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.digest import Digest, Publisher, short_name
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams

BLOCK = 512
TOKEN_SECONDS = 0.03
REPORT_SECONDS = 0.5


@dataclass(slots=True)
class Job:
    """A request of the trace. `expected` prompt tokens were to be found where it was sent."""

    id: str
    arrived: float
    prompt: int
    answer: int
    names: list[bytes]
    expected: int = 0
    found: int = 0
    table: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.prompt - self.expected


def read_trace(path: Path) -> Iterator[Job]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines):
            entry = json.loads(line)
            names = [block_name(each) for each in entry["hash_ids"]]
            yield Job(
                str(number),
                entry["timestamp"] / 1e3,
                entry["input_length"],
                entry["output_length"],
                names,
            )


def block_name(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def best_possible(jobs: list[Job]) -> tuple[float, int]:
    """One cache that forgets nothing: its hit rate, and the prompt tokens that it would not
    find."""
    seen: set[bytes] = set()
    found = missing = 0
    for job in jobs:
        hits = sum(1 for _ in itertools.takewhile(seen.__contains__, job.names))
        found += hits
        missing += max(1, job.prompt - hits * BLOCK)
        seen.update(job.names)
    return found / sum(len(job.names) for job in jobs), missing


class Replica:
    """`later` is called with a moment and what is to happen then."""

    def __init__(
        self,
        name: str,
        blocks: int,
        rate: float,
        later: Callable[[float, Callable[..., None]], None],
    ) -> None:
        capacity = Capacity(blocks + 1, BLOCK)
        config = SchedulerConfig(max_model_len=2**20, block_size=BLOCK)
        cache = KvCache(capacity, Reservation(config))
        self.name = name
        self.pool = cache.pool
        self.publisher = Publisher(cache, "", 2**20)
        self.queue: deque[Job] = deque()
        self.computing: Job | None = None
        self.running = 0
        self.backlog = 0
        self.computed = 0
        self.requests = 0
        self.waits: list[float] = []
        self.ended: list[str] = []  # requests, until somebody has read it
        self.hits = 0
        self._rate = rate
        self._later = later

    @property
    def ongoing(self) -> int:
        return len(self.queue) + self.running

    def add(self, job: Job, now: float) -> None:
        self.requests += 1
        self.backlog += job.left
        self.queue.append(job)
        self._start(now)

    def _start(self, now: float) -> None:
        if self.computing is not None or not self.queue:
            return
        job, pool = self.queue[0], self.pool
        hits: list[int] = []
        for name in job.names:
            block = pool.find(name)
            if block is None:
                break
            hits.append(block)
        blocks = -(-(job.prompt + job.answer) // BLOCK)
        blocks = max(blocks, len(job.names))
        unheld = sum(pool.references[block] == 0 for block in hits)
        if pool.free - unheld < blocks - len(hits):
            assert self.running, "a request is larger than the pool"
            return
        self.queue.popleft()
        for block in hits:
            pool.touch(block)
        job.table = hits + [pool.take() for _ in range(blocks - len(hits))]
        job.found = len(hits)
        self.hits += len(hits)
        self.running += 1
        self.computing = job
        missing = max(1, job.prompt - len(hits) * BLOCK)
        self.computed += missing + job.answer
        self._later(now + missing / self._rate, self._computed)

    def _computed(self, now: float) -> None:
        job = self.computing
        assert job is not None
        for block, name in zip(job.table, job.names, strict=False):
            if self.pool.names[block] is None:
                self.pool.publish(block, name)
        self.backlog -= job.left
        self.waits.append(now - job.arrived)
        self.computing = None
        self._later(now + job.answer * TOKEN_SECONDS, partial(self._end, job))
        self._start(now)

    def _end(self, job: Job, now: float) -> None:
        self.pool.release(reversed(job.table))
        self.running -= 1
        self.ended.append(job.id)
        self._start(now)


Choose = Callable[[Job, float], Replica]


class ByPrefix:
    """The router, with its own idea of the replicas."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = {each.name: each for each in replicas}
        self._routing = Routing()
        self.report(0.0)
        self.seconds: list[float] = []

    def report(self, now: float) -> None:
        for each in self._replicas.values():
            for request_id in each.ended:
                self._routing.ended(request_id)
            each.ended.clear()
            digest = each.publisher.changes() if now else each.publisher.whole()
            if digest is not None:
                self._routing.learn(each.name, digest)
            self._routing.hear(each.name, each.backlog, each.ongoing, now)

    def __call__(self, job: Job, now: float) -> Replica:
        short = list(map(short_name, job.names))
        begin = time.perf_counter()
        decision = self._routing.route(job.id, job.prompt, lambda *_: short, self._replicas)
        self.seconds.append(time.perf_counter() - begin)
        job.expected = decision.cached
        self._routing.taken(job.id, decision.replica)
        return self._replicas[decision.replica]


def in_turn(replicas: list[Replica]) -> Choose:
    turn = itertools.cycle(replicas)
    return lambda job, now: next(turn)


def two_choices(replicas: list[Replica]) -> Choose:
    """The shorter queue of two, by their lengths at that very moment."""
    source = random.Random(7)

    def choose(job: Job, now: float) -> Replica:
        pair = source.sample(replicas, min(2, len(replicas)))
        return min(pair, key=lambda each: each.ongoing)

    return choose


POLICIES: dict[str, Callable[[list[Replica]], Choose]] = {
    "prefix and load": ByPrefix,
    "two choices": two_choices,
    "in turn": in_turn,
}


def replay(jobs: list[Job], count: int, blocks: int, rate: float, policy: str) -> list[object]:
    """One run: hit rate, both imbalances, median and 99th percentile of seconds to the first
    token."""
    events: list[tuple[float, int, Callable[[float], None]]] = []
    number = itertools.count()

    def later(at: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (at, next(number), what))

    replicas = [Replica(str(i), blocks, rate, later) for i in range(count)]
    choose = POLICIES[policy](replicas)
    for job in jobs:
        later(job.arrived, partial(lambda job, now: choose(job, now).add(job, now), job))
    if isinstance(choose, ByPrefix):
        for tick in range(1, int(jobs[-1].arrived / REPORT_SECONDS) + 1):
            later(tick * REPORT_SECONDS, choose.report)
    while events:
        at, _, what = heapq.heappop(events)
        what(at)
    waits = sorted(itertools.chain.from_iterable(each.waits for each in replicas))
    assert len(waits) == len(jobs)
    hits = sum(each.hits for each in replicas) / sum(len(job.names) for job in jobs)
    return [
        f"{hits:.1%}",
        f"{spread([each.computed for each in replicas]):.2f}",
        f"{spread([each.requests for each in replicas]):.2f}",
        f"{statistics.median(waits):.2f}",
        f"{waits[int(0.99 * len(waits))]:.1f}",
    ]


def spread(loads: list[int]) -> float:
    return max(loads) / statistics.mean(loads)


def measure_trace(path: Path, counts: Iterable[int], sizes: Iterable[int], busy: float) -> None:
    jobs = list(read_trace(path))
    best, missing = best_possible(jobs)
    blocks = {name for job in jobs for name in job.names}
    print(f"\n{path.name}: {len(jobs)} requests, {len(blocks)} different blocks.")
    print(f"One cache that forgets nothing finds {best:.1%}.\n")
    print(row("replicas", "blocks each", "policy", "blocks found", "imbalance, tokens",
              "imbalance, requests", "TTFT median s", "p99 s"))  # fmt: skip
    print(row(*["---"] * 8))
    for size in sizes:
        for count in counts:
            rate = missing / jobs[-1].arrived / count / busy
            whole = size or len(blocks) + sum(1 + job.answer // BLOCK for job in jobs)
            for policy in POLICIES:
                fresh = [Job(j.id, j.arrived, j.prompt, j.answer, j.names) for j in jobs]
                figures = replay(fresh, count, whole, rate, policy)
                print(row(count, size or "unbounded", policy, *figures), flush=True)


def measure_cost(known: int, replicas: int) -> None:
    """A decision's time with so many names known, each held by one replica or by several. In
    processor time: others on the machine are no part of it."""
    source = random.Random(7)
    chains = [[source.getrandbits(64) for _ in range(1024)] for _ in range(known // 1024)]
    chains.append([source.getrandbits(64) for _ in range(known % 1024)])
    tracemalloc.start()
    routing = Routing()
    holders = [source.sample(range(replicas), source.choice((1, 1, 2, 4))) for _ in chains]
    for number in range(replicas):
        held = [name for chain, those in zip(chains, holders, strict=True) if number in those
                for name in chain]  # fmt: skip
        raw = struct.pack(f"<{len(held)}Q", *held)
        routing.learn(str(number), Digest(0, True, "", 16, 1, raw))
        routing.hear(str(number), source.randrange(1000), source.randrange(64), 0.0)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    able = list(map(str, range(replicas)))
    print(f"\n{known} names known, {replicas} replicas: {memory / 2**20:.0f} MiB.\n")
    print(row("blocks of the prompt", "found", "decision, median µs", "p99 µs", "naming, median µs",
              "probe"))  # fmt: skip
    print(row(*["---"] * 6))
    for blocks, found in ((8, 0), (64, 48), (256, 0), (256, 192), (1024, 768)):
        speed = probe(1)
        decisions, naming = [], []
        for number in range(1000):
            new = [source.getrandbits(64) for _ in range(blocks - found)]
            names = source.choice(chains[:-1])[:found] + new
            prompt = [source.randrange(100_000) for _ in range(16 * blocks)]
            request = Request(str(number), prompt, SamplingParams(seed=0))
            name = names_of(request)
            assert name is not None
            begin = time.thread_time()
            name("", 16)
            naming.append(time.thread_time() - begin)
            begin = time.thread_time()
            routing.route(request.id, len(prompt), lambda *_, names=names: names, able)
            decisions.append(time.thread_time() - begin)
            routing.taken(request.id, "0")
            routing.ended(request.id)
            if number % 64 == 0:
                for each in able:
                    routing.hear(each, source.randrange(1000), source.randrange(64), number / 1e3)
        decisions.sort()
        print(row(blocks, found, f"{decisions[500] * 1e6:.0f}", f"{decisions[990] * 1e6:.0f}",
                  f"{statistics.median(naming) * 1e6:.0f}", speed), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--blocks", type=int, nargs="+", default=[0, 3000], help="0: unbounded")
    parser.add_argument("--busy", type=float, default=0.4)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--known", type=int, default=100_000, help="names, for --cost")
    args = parser.parse_args()
    print(describe())
    for path in args.trace:
        measure_trace(path, args.replicas, args.blocks, args.busy)
    if args.cost:
        measure_cost(args.known, 64)


if __name__ == "__main__":
    main()
