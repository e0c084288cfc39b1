"""A group of processes over gloo, for tests.

They are forked from a server that has imported torch once and computed nothing: that is quick, and
safe where forking a process that has used threads is not.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from typing import Any

import torch

from octavo.workers.config import WorkerConfig
from octavo.workers.parallel import Group
from octavo.workers.worker import Worker

TIMEOUT_SECONDS = 60.0


def run_ranks(size: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `task(group, *arguments)` returns on each of `size` ranks. `task` belongs to a module.
    Raises `AssertionError` where a rank raised."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    answers = context.SimpleQueue()
    address = _free_address()
    ranks = [
        context.Process(target=_run_rank, args=(rank, size, address, answers, task, arguments))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    found = sorted((answers.get() for _ in ranks), key=lambda answer: answer[0])
    for process in ranks:
        process.join()
    for rank, _, fault in found:
        if fault is not None:
            raise AssertionError(f"rank {rank} failed: {fault}")
    return [answer for _, answer, _ in found]


def execute_plans(
    group: Group, configs: Sequence[WorkerConfig], plans: Sequence[bytes], num_blocks: int
) -> list[list[bytes | None]]:
    """The answers of one rank to `plans`, for one model after another."""
    found = []
    for config in configs:
        worker = Worker(config, group)
        worker.load()
        worker.allocate(num_blocks)
        found.append([worker.execute(plan) for plan in plans])
    return found


def execute_ahead(
    group: Group, config: WorkerConfig, runs: Sequence[Sequence[bytes]], num_blocks: int
) -> list[list[bytes | None]]:
    """The answers of one rank to several runs of plans, each step begun before the one before is
    finished."""
    found = []
    for plans in runs:
        worker = Worker(config, group)
        worker.load()
        worker.allocate(num_blocks)
        worker.runs_ahead = True
        answers, aloft = [], []
        for plan in plans:
            aloft.append(worker.begin(plan))
            if len(aloft) == 2:
                answers.append(worker.finish(aloft.pop(0)))
        found.append(answers + [worker.finish(flight) for flight in aloft])
    return found


def talk(group: Group, dtype: torch.dtype) -> dict[str, list[Any] | None]:
    """One of each collective; values tell the ranks apart."""
    summed = torch.full((3,), group.rank + 1.0, dtype=dtype)
    group.all_reduce(summed)
    gathered = group.gather_columns(torch.full((2, 1), float(group.rank), dtype=dtype))
    shared = torch.tensor([group.rank + 7, group.rank])
    group.broadcast(shared)
    return {
        "summed": summed.tolist(),
        "gathered": None if gathered is None else gathered.tolist(),
        "shared": shared.tolist(),
    }


def lose_a_peer(group: Group) -> str:
    """The last rank leaves in the middle of a step; the others say what they then raise."""
    if group.rank == group.size - 1:
        group.close()
        return "left"
    try:
        for _ in range(3):
            group.all_reduce(torch.zeros(1000))
    except RuntimeError as error:
        return type(error).__name__
    return "noticed nothing"


def _run_rank(
    rank: int,
    size: int,
    address: str,
    answers: Any,
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    try:
        torch.set_num_threads(1)
        group = Group.join(address, rank, size, "cpu", timeout_seconds=TIMEOUT_SECONDS)
        answer = task(group, *arguments)
        group.close()
        answers.put((rank, answer, None))
    except Exception as error:
        answers.put((rank, None, repr(error)))


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
