"""Nodes beside the head, which come and go: ranks find their place there and nowhere else."""

from __future__ import annotations

import itertools
import threading

import psutil  # type: ignore[import-untyped]

from tests.e2e.cluster import Cluster
from tests.e2e.nodes import START_SECONDS, Node
from tests.e2e.server import wait_for

RESOURCE = "leaf"
ROOM = 5  # ranks of a node: most of what the chaos has, so that both have some


class Leaves:
    """`count` nodes with `room` for so many ranks each, each a `ray start` of its own, at addresses
    that no other had before. Blocks: to be called from threads."""

    def __init__(self, cluster: Cluster, count: int, room: int = ROOM) -> None:
        self._cluster = cluster
        self._room = room
        self._count = count
        self._numbers = itertools.count(20)
        self._starting = threading.Lock()  # two at once may take the same name for their sockets
        self._ended = False
        self._nodes: list[Node] = []
        for _ in range(count):
            self._add()

    def able(self, spared: set[psutil.Process]) -> list[Node]:
        """Nodes that may be lost: never one of them while another is missing."""
        if len(self._nodes) < self._count:
            return []
        return [node for node in list(self._nodes) if not spared & set(node.family())]

    def lose(self, node: Node) -> None:
        """It falls silent at once."""
        self._nodes.remove(node)
        node.kill()

    def replace(self) -> None:
        """Another node joins."""
        self._add()

    def family(self) -> list[psutil.Process]:
        """All processes there, now."""
        return [process for node in list(self._nodes) for process in node.family()]

    def end(self) -> None:
        with self._starting:
            self._ended = True
            for node in self._nodes:
                node.kill()

    def _add(self) -> None:
        with self._starting:
            if self._ended:
                return
            number = next(self._numbers)
            address = f"127.0.{number // 250}.{number % 250 + 1}"
            own = [
                f"--address={self._cluster.address}",
                f"--num-cpus={3 * self._room}",
                f'--resources={{"{RESOURCE}": {self._room}}}',
            ]
            log = f"{self._cluster.folder}/{address}.log"
            node = Node(address, own, self._cluster.environment, log)
            self._nodes.append(node)
            wait_for(lambda: node.is_up, START_SECONDS, f"the start of {address}")
