"""Tensor parallelism: two ranks, each a process with a GPU of its own, against one."""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import Any

import torch

from benchmarks.gpu_check.engine import Case, Engine, greedy
from benchmarks.gpu_check.report import CannotRun, Report
from benchmarks.gpu_check.setting import Setting
from octavo.scheduler.plan import decode_plan, decode_result
from octavo.workers.config import WorkerConfig
from octavo.workers.parallel import Group
from octavo.workers.worker import Worker

RANKS = 2


def check_ranks(setting: Setting, report: Report) -> None:
    """The plans of one rank's run, executed by two: what these choose is judged as one's is."""
    on_gpus = setting.device.type == "cuda"
    if on_gpus and (count := torch.cuda.device_count()) < RANKS:
        raise CannotRun(f"{RANKS} ranks need {RANKS} GPUs, and there is {count}")
    case = Case(setting)
    case.length = 1  # a plan holds the tokens of the run that it was made for
    config = case.config(tensor_parallel_size=RANKS)
    plans = _plans_of(Engine(case.config()), case)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    ranks = [
        context.Process(target=_rank, args=(rank, address, config, plans, answers))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    found = dict(answers.get() for _ in ranks)
    for process in ranks:
        process.join()
    for rank, tokens in found.items():
        if isinstance(tokens, str):
            raise RuntimeError(f"rank {rank}: {tokens}")
    report.check("rank 1 answers nothing", found[1] == {})
    case.judge(report, f"{RANKS} ranks", [[found[0][tuple(p)]] for p in case.prompts])


def _plans_of(engine: Engine, case: Case) -> list[bytes]:
    """Every plan that was executed."""
    seen: list[bytes] = []
    begin = engine.worker.begin

    def note(raw: bytes) -> Any:
        seen.append(raw)
        return begin(raw)

    engine.worker.begin = note  # type: ignore[method-assign]
    engine.answer(case.prompts, [greedy(1)] * len(case.prompts))
    return seen


def _rank(rank: int, address: str, config: WorkerConfig, plans: list[bytes], answers: Any) -> None:
    try:
        if config.device == "cuda":  # as Ray does: a rank sees its own GPU alone
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        group = Group.join(address, rank, RANKS, config.device)
        worker = Worker(config, group)
        worker.load()
        worker.allocate(worker.measure())
        prompts: dict[int, tuple[int, ...]] = {}
        tokens: dict[tuple[int, ...], int] = {}
        for raw in plans:
            answer = worker.execute(raw)
            plan = decode_plan(raw)
            prompts |= {add.row: tuple(add.tokens) for add in plan.add}
            drawing = [prompts[work.row] for work in plan.work if work.sample]
            if answer is not None:
                tokens |= zip(drawing, decode_result(answer).tokens, strict=True)
        group.close()
        answers.put((rank, tokens))
    except Exception as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))
