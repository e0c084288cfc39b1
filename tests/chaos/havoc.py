"""What goes wrong, and when: processes killed or stopped one after another, and models scaled. All
of it is drawn from a seed; which process is hit depends on which are there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import psutil  # type: ignore[import-untyped]

from tests.chaos.cluster import Victim

KINDS = ("worker", "scheduler", "replica", "ingress")
STOPPED = "stopped worker"  # it does not die, it does nothing any more
NODE = "node"  # all its processes at once, and another one comes
MORE_KINDS = (*KINDS, NODE, "controller", STOPPED)
SCALES = (("pair", 3), ("lone", 2), ("pair", 2), ("lone", 1))
NOTICED_SECONDS = 2.0  # until the proxy knows that an ingress is gone


class Havoc:
    """`spared` are processes that are not killed; the oldest ingress never is, since clients need
    a way in."""

    def __init__(self, victim: Victim, seed: int, kinds: Sequence[str] = KINDS) -> None:
        self.kills: Counter[str] = Counter()
        self.scales = 0
        self.spared: set[psutil.Process] = set()
        self._victim = victim
        self._source = random.Random(f"havoc {seed}")
        self._deck = self._kinds(kinds)
        self._ingresses_killed: list[float] = []
        self._whole = asyncio.Lock()  # held while a node is missing: enough is starting anew then

    async def kill(self, period: float) -> None:
        """One kill every `period` seconds on average; one that finds no victim comes when there is
        one. Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(period * self._source.uniform(0.5, 1.5))
                group.create_task(self.kill_one(next(self._deck)))

    async def scale(self, period: float) -> None:
        """One change of a model's replicas after another. Until cancelled."""
        while True:
            for model, replicas in SCALES:
                await asyncio.sleep(period * self._source.uniform(0.5, 1.5))
                await self.scale_one(model, replicas)

    async def scale_one(self, model: str, replicas: int) -> None:
        """As its administrator would: a changed config file is sent."""
        await self._victim.deploy({model: replicas})
        self.scales += 1

    async def kill_one(self, kind: str) -> None:
        """One process of this kind, as soon as there is one."""
        if kind == NODE:
            return await self._lose_node()
        async with self._whole:
            pass
        while not (able := await asyncio.to_thread(self._able, kind)):
            await asyncio.sleep(0.2)
        process = self._source.choice(able)
        if kind == "ingress":
            self._ingresses_killed.append(time.monotonic())
        with contextlib.suppress(psutil.NoSuchProcess):  # it was about to end
            process.send_signal(signal.SIGSTOP if kind == STOPPED else signal.SIGKILL)
            self.kills[kind] += 1

    def took_an_ingress(self, began: float, ended: float) -> bool:
        """Whether an ingress was killed under a call that failed just after it, by
        `time.monotonic`."""
        since = max(began, ended - NOTICED_SECONDS) - NOTICED_SECONDS
        return any(since <= at <= ended for at in self._ingresses_killed)

    async def _lose_node(self) -> None:
        leaves = self._victim.leaves
        async with self._whole:
            while not (able := await asyncio.to_thread(leaves.able, self.spared)):
                await asyncio.sleep(0.2)
            self.kills[NODE] += 1
            await asyncio.to_thread(leaves.lose, self._source.choice(able))
            await asyncio.to_thread(leaves.replace)

    def _able(self, kind: str) -> list[psutil.Process]:
        role = "worker" if kind == STOPPED else kind
        there = self._victim.processes().get(role, [])
        if kind == "ingress":
            there = there[1:]
        return [each for each in there if each not in self.spared]

    def _kinds(self, kinds: Sequence[str]) -> Iterator[str]:
        while True:
            yield from self._source.sample(kinds, len(kinds))
