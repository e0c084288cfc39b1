"""One rank as a Ray actor: the only file of the workers that knows Ray.

Ray starts it, supervises it and says when it died. Once `run` is called the actor answers no other
call: plans reach it through the step channel.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import ray
import ray.util

from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import OutOfStep
from octavo.workers.ahead import launcher_of, run_ahead
from octavo.workers.channel import Link, WorkerChannel
from octavo.workers.config import WorkerConfig
from octavo.workers.interface import interface_of
from octavo.workers.member import Member
from octavo.workers.versions import Versions, installed

logger = logging.getLogger(__name__)


Build = Callable[[int, int, str], Member]
"""(rank, number of ranks, tcp address where the ranks meet) -> Member. Blocks until all met."""


def model_member(config: WorkerConfig, rank: int, size: int, meeting: str) -> Member:
    """A `Build`, once bound to a config: a shard of a real model."""
    from octavo.workers.parallel import Group  # torch is wanted in the ranks' processes alone
    from octavo.workers.worker import Worker

    return Worker(config, Group.join(meeting, rank, size, config.device))


def null_member(
    block_size: int,
    num_blocks: int,
    num_host_blocks: int,
    step_seconds: float,
    rank: int,
    size: int,
    meeting: str,
) -> Member:
    """A `Build`, once bound to its first four: a worker without a model."""
    from octavo.workers.null import NullWorker

    return NullWorker(
        block_size,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        rank=rank,
        step_seconds=step_seconds,
    )


@dataclass(frozen=True, slots=True)
class Presence:
    """A rank's process: `node` is Ray's id of its node, which no two nodes share, `address` is the
    node's IP address, which containers may share. `gpus` are those of the node that Ray gave it,
    and lets it see."""

    pid: int
    address: str
    node: str
    versions: Versions
    gpus: tuple[str, ...] = ()


class WorkerActor:
    """Calls come in this order: hello, (rank 0: rendezvous,) join, load, allocate, run."""

    def __init__(self, build: Build, rank: int, size: int) -> None:
        self._build = build
        self._rank = rank
        self._size = size
        self._node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._member: Member | None = None

    def hello(self) -> Presence:
        """The process is up."""
        context = ray.get_runtime_context()
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        return Presence(os.getpid(), self._node, str(context.get_node_id()), installed(), gpus)

    def rendezvous(self) -> str:
        """An address on this node where the ranks can meet."""
        family = socket.AF_INET6 if ":" in self._node else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((self._node, 0))
            return f"tcp://{self._node}:{probe.getsockname()[1]}"

    def join(self, rendezvous: str) -> None:
        """Meets the other ranks. Gloo is reached where Ray reaches this node, unless it was told
        otherwise."""
        if (interface := interface_of(self._node)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._member = self._build(self._rank, self._size, rendezvous)

    def load(self) -> int:
        """Loads this rank's weights and returns how many blocks fit beside them."""
        self._joined.load()
        return self._joined.measure()

    def allocate(self, num_blocks: int) -> Capacity:
        """Takes the memory of the cache, the same number of blocks on all ranks, and of the host
        tier, as much as this rank has room for."""
        return self._joined.allocate(num_blocks)

    def run(self, link: Link) -> str | None:
        """Executes plans until told to stop. Returns why, if that is not the reason it ended."""
        member = self._joined
        with WorkerChannel(link, self._rank, self._node, member.progress) as channel:
            try:
                _execute_all(member, channel)
            except Exception as error:
                logger.exception("rank %d cannot go on", self._rank)
                reason = f"{type(error).__name__}: {_first_line(error)}"
                channel.failed(reason)
                return reason
        return None

    @property
    def _joined(self) -> Member:
        assert self._member is not None, "join comes first"
        return self._member


def _execute_all(member: Member, channel: WorkerChannel) -> None:
    if (launcher := launcher_of(member)) is not None:
        return run_ahead(launcher, channel)
    for plan in channel.plans():
        _execute(member, plan, channel)


def _execute(member: Member, plan: bytes, channel: WorkerChannel) -> None:
    try:
        result = member.execute(plan)
    except OutOfStep as gap:
        channel.stray(gap.expected, gap.got)
        return
    if result is not None:
        channel.answer(result)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
