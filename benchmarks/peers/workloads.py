"""What is asked of every side: prompts, lengths, how many requests at once.

Token ids are random, and no two rounds share any, so that no cache survives from one to the next.
Within a round every side gets the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from prefix import prompts as prefixed

Prompts = list[list[int]]

REQUESTS = 64
STREAM_REQUESTS = 4
WARM_UP_SEED = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompts` makes those of one seed. Sides named in `slow` take minutes a turn."""

    key: str
    title: str
    output: int
    in_flight: int
    prompts: Callable[[int], Prompts]
    slow: frozenset[str] = frozenset()


def random_prompts(count: int, length: int, seed: int) -> Prompts:
    source = random.Random(seed)
    return [[source.randrange(100, 40_000) for _ in range(length)] for _ in range(count)]


OFFLINE = Workload(
    "offline",
    "Without a server: 64 requests at once, 128 in, 128 out",
    output=128,
    in_flight=REQUESTS,
    prompts=lambda seed: random_prompts(REQUESTS, 128, seed),
    slow=frozenset({"transformers, continuous batching", "transformers, static 64"}),
)

SERVED = (
    Workload(
        "server",
        "Through the server: 64 requests, 16 in flight, 128 in, 128 out",
        output=128,
        in_flight=16,
        prompts=lambda seed: random_prompts(REQUESTS, 128, seed),
        slow=frozenset({"llama-server"}),
    ),
    Workload(
        "shared-prefix",
        "Through the server, one prefix: 64 requests, 16 in flight, 512 + 32 in, 64 out",
        output=64,
        in_flight=16,
        prompts=lambda seed: prefixed(REQUESTS, 1, seed),
        slow=frozenset({"llama-server"}),
    ),
    Workload(
        "own-prefixes",
        "Through the server, own prefixes: 64 requests, 16 in flight, 512 + 32 in, 64 out",
        output=64,
        in_flight=16,
        prompts=lambda seed: prefixed(REQUESTS, REQUESTS, seed),
        slow=frozenset({"llama-server"}),
    ),
    Workload(
        "stream",
        f"Through the server, one stream: {STREAM_REQUESTS} requests one by one, 128 in, 128 out",
        output=128,
        in_flight=1,
        prompts=lambda seed: random_prompts(STREAM_REQUESTS, 128, seed),
    ),
)

KEYS = (OFFLINE.key, *(workload.key for workload in SERVED))


def seed_of(workload: Workload, round_number: int) -> int:
    """Another one for each round of each workload."""
    return 1 + KEYS.index(workload.key) + len(KEYS) * round_number
