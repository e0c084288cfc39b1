"""The executor over Ray: starts one actor a rank, feeds all by the step channel, watches them.

Implements `octavo.cluster.engine.Workers`. Lives on one asyncio loop, in an actor or in a driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup

from octavo.cluster.distributed.channel import BLAME_SECONDS, StepChannel
from octavo.cluster.distributed.placement import (
    actor_options,
    addresses,
    bundle_nodes,
    bundles_of_ranks,
    odd_gpu,
    rank_resources,
)
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import EngineDead, OctavoError
from octavo.workers.actor import Build, Presence, WorkerActor
from octavo.workers.progress import Tally
from octavo.workers.versions import installed, odd_rank

PROCESS_SECONDS = 120.0
JOIN_SECONDS = 300.0  # the first time on a node its CPU kernels are compiled too
LOAD_SECONDS = 1800.0
GREET_SECONDS = 30.0
STOP_SECONDS = 2.0

T = TypeVar("T")


class RayWorkers:
    """`build` makes one rank's worker in its process. With `group`, the ranks go to its bundles
    from 1 on; without, wherever Ray finds room. `on_progress` gets one line a stage."""

    def __init__(
        self,
        build: Build,
        size: int,
        *,
        device: str = "cpu",
        group: PlacementGroup | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._build = build
        self._size = size
        self._device = device
        self._group = group
        self._say = on_progress
        self._address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._node = str(ray.get_runtime_context().get_node_id())
        self._actors: list[Any] = []
        self._expected: list[str] = []  # the address of each rank's node, if known beforehand
        self._present: list[Presence] = []
        self._channel: StepChannel | None = None
        self._fault: str | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._loops: list[Any] = []

    async def start(self) -> Capacity:
        """Processes up, ranks met, weights loaded, cache taken, channel open. Raises an
        `OctavoError` that names the stage and the rank; whatever was started is ended then."""
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> Capacity:
        actor = ray.remote(WorkerActor)
        bundles = await asyncio.to_thread(self._arrange)
        for rank, bundle in enumerate(bundles):
            options = actor_options(rank_resources(self._device), self._group, bundle)
            self._actors.append(actor.options(**options).remote(self._build, rank, self._size))
        self._present = await self._all(
            "start", [actor.hello.remote() for actor in self._actors], PROCESS_SECONDS
        )
        if odd := odd_rank(installed(), [each.versions for each in self._present]):
            rank, words = odd
            raise EngineDead(
                f"{self._place(rank)} {words}; install the same on every node of the cluster"
            )
        if self._device == "cuda" and (
            odd := odd_gpu([(each.node, each.gpus) for each in self._present])
        ):
            rank, words = odd
            raise EngineDead(f"{self._place(rank)} {words}; see the node's CUDA_VISIBLE_DEVICES")
        meeting = await self._actors[0].rendezvous.remote()
        await self._all(
            f"meet the others at {meeting}",
            [actor.join.remote(meeting) for actor in self._actors],
            JOIN_SECONDS,
        )
        self._say("loading the model")
        rooms: list[int] = await self._all(
            "load the model", [actor.load.remote() for actor in self._actors], LOAD_SECONDS
        )
        num_blocks = min(rooms)
        capacities: list[Capacity] = await self._all(
            f"take the memory of {num_blocks} blocks",
            [actor.allocate.remote(num_blocks) for actor in self._actors],
            LOAD_SECONDS,
        )
        self._channel = StepChannel(self._address, self._size)
        self._loops = [actor.run.remote(self._channel.link) for actor in self._actors]
        self._watchers = [
            asyncio.create_task(self._watch(rank, loop)) for rank, loop in enumerate(self._loops)
        ]
        await self._channel.greet(GREET_SECONDS)
        return min(capacities, key=lambda capacity: capacity.num_host_blocks)

    async def execute(self, plan: bytes) -> bytes:
        """See `StepChannel.execute`."""
        assert self._channel is not None, "start comes first"
        return await self._channel.execute(plan)

    def tallies(self) -> list[Tally]:
        """See `Workers.tallies`: each rank's as its last heartbeat had it."""
        return [] if self._channel is None else self._channel.tallies()

    @property
    def fault(self) -> str | None:
        """Why the group is useless, or None."""
        return self._fault or (self._channel.fault if self._channel is not None else None)

    async def died(self) -> str:
        """Waits until a rank is dead or stuck and returns the sentence that says which."""
        assert self._channel is not None, "start comes first"
        return await self._channel.died()

    async def stop(self) -> None:
        """Ends every rank: asked first, killed after `STOP_SECONDS`. A rank on this node is killed
        by its process id, since a stopped process does not hear Ray."""
        for watcher in self._watchers:
            watcher.cancel()
        if self._channel is not None:
            self._fault = self._channel.fault or "the engine was stopped"
            healthy = self._channel.fault is None
            await self._channel.close()
            if healthy and self._loops:
                await asyncio.to_thread(
                    ray.wait, self._loops, num_returns=len(self._loops), timeout=STOP_SECONDS
                )
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        for each in self._present:
            if each.node == self._node:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
        self._actors, self._present, self._channel = [], [], None

    def _arrange(self) -> list[int]:
        """The bundle of each rank."""
        if self._group is None:
            return list(range(1, 1 + self._size))
        nodes = bundle_nodes(self._group)
        known = addresses()
        bundles = bundles_of_ranks(nodes)
        self._expected = [known.get(nodes[bundle], "a node that is gone") for bundle in bundles]
        return bundles

    async def _watch(self, rank: int, loop: Any) -> None:
        assert self._channel is not None
        try:
            reason = await loop
        except RayActorError as error:
            self._channel.fail(f"{self._place(rank)} died: {_cause_of_death(error)}")
        else:
            await asyncio.sleep(BLAME_SECONDS)
            self._channel.fail(f"{self._place(rank)} failed: {reason or 'it left its loop'}")

    async def _all(self, stage: str, calls: Sequence[Any], timeout: float) -> list[Any]:
        """Results of all ranks, or one error that names the likeliest culprit."""
        tasks = [asyncio.ensure_future(_result(call)) for call in calls]
        _, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        failed = any(task.done() and task.exception() for task in tasks)
        if failed and pending:
            _, pending = await asyncio.wait(tasks, timeout=BLAME_SECONDS)
        errors = [(r, task.exception()) for r, task in enumerate(tasks) if task.done()]
        blamed = [(rank, error) for rank, error in errors if error is not None]
        late = [rank for rank, task in enumerate(tasks) if not task.done()]
        for task in pending:
            task.cancel()
        if blamed:
            # A dead rank explains the others' failures; rank 0 fails for what others did not do.
            rank, error = min(
                blamed, key=lambda item: (not isinstance(item[1], RayActorError), item[0] == 0)
            )
            raise self._startup_error(stage, rank, error)
        if late:
            names = ", ".join(self._place(rank) for rank in late)
            raise EngineDead(f"{names} did not {stage} within {timeout:g} s")
        return [task.result() for task in tasks]

    def _startup_error(self, stage: str, rank: int, error: BaseException) -> OctavoError:
        if isinstance(error, RayActorError):
            return EngineDead(
                f"{self._place(rank)} died before it could {stage}: {_cause_of_death(error)}"
            )
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, OctavoError) and not isinstance(cause, EngineDead):
            return cause
        lines = str(cause).strip().splitlines() or ["no message"]
        kind = "" if isinstance(cause, EngineDead) else f"{type(cause).__name__}: "
        return EngineDead(f"{self._place(rank)} could not {stage}: {kind}{lines[0]}")

    def _place(self, rank: int) -> str:
        if rank < len(self._present):
            each = self._present[rank]
            return f"rank {rank} (pid {each.pid} on {each.address})"
        if rank < len(self._expected):
            return f"rank {rank} (on {self._expected[rank]})"
        return f"rank {rank}"


async def _result(call: Any) -> Any:
    return await call


def _cause_of_death(error: RayActorError) -> str:
    """Ray's paragraphs in a few words."""
    text = str(error)
    if "running low on memory" in text:
        return "its node ran out of memory"
    kind = re.search(r"Worker exit type: (\w+)", text)
    return f"its process ended ({kind[1]})" if kind else "its process or its node is gone"
