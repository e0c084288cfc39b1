"""Sizing the cache: what is measured, what is left, and what is said where that is too little."""

from __future__ import annotations

import torch

from benchmarks.gpu_check.engine import Case
from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.worker import Worker


def check_memory(setting: Setting, report: Report) -> None:
    case = Case(setting)
    utilization = 0.5  # of whatever else is on this machine nothing is known
    config = case.config(kv_cache_memory_bytes=None, gpu_memory_utilization=utilization)
    worker = Worker(config)
    worker.load()
    blocks = worker.measure()
    size = blocks * worker.layout.block_bytes
    report.figures["blocks"] = blocks
    report.figures["GiB for the cache"] = round(size / 2**30, 3)
    if setting.device.type == "cuda":
        worker.allocate(blocks)
        worker.largest_step()
        free, total = torch.cuda.mem_get_info(setting.device)
        used = 1 - free / total
        report.figures["share in use after the largest step"] = round(used, 4)
        report.check("no more is used than was allowed", used <= utilization + 0.02, used)
    try:
        _measure_too_small(case)
    except InvalidRequest as refusal:
        report.figures["a refusal"] = refusal.message.splitlines()
        report.check("a refusal names a length", "largest length that fits" in refusal.message)
    else:
        report.check("a cache that is too small is refused", False)


def _measure_too_small(case: Case) -> None:
    worker = Worker(case.config(kv_cache_memory_bytes=2**16))
    worker.load()
    worker.measure()
