"""Sizing the cache: what is measured, what is left, and what is said where that is too little."""

from __future__ import annotations

import torch

from benchmarks.gpu_check.engine import Case
from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.worker import Worker

ROOM_FOR_A_STEP = 16 * 2**20  # bytes: too few for one of 16,384 tokens


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
        del worker
        _run_out(case, setting, report)
    try:
        _measure_too_small(case)
    except InvalidRequest as refusal:
        report.figures["a refusal"] = refusal.message.splitlines()
        report.check("a refusal names a length", "largest length that fits" in refusal.message)
    else:
        report.check("a cache that is too small is refused", False)


def _run_out(case: Case, setting: Setting, report: Report) -> None:
    """Has the largest step run out of memory, of which this process may take little more."""
    config = case.config(kv_cache_memory_bytes=None, max_num_batched_tokens=16384, max_num_seqs=256)
    worker = Worker(config)
    worker.load()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(setting.device)
    allowed = torch.cuda.memory_reserved(setting.device) + ROOM_FOR_A_STEP
    torch.cuda.set_per_process_memory_fraction(allowed / total, setting.device)
    try:
        worker.measure()
    except InvalidRequest as refusal:
        lines = refusal.message.splitlines()
        report.figures["a step that does not fit"] = lines
        named = "ran out of memory" in lines[0] and "largest length that fits" in lines[-1]
        report.check("a step that does not fit is explained", named)
    else:
        report.check("a step that does not fit is refused", False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, setting.device)


def _measure_too_small(case: Case) -> None:
    worker = Worker(case.config(kv_cache_memory_bytes=2**16))
    worker.load()
    worker.measure()
