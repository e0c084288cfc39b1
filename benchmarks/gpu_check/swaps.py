"""Blocks between the tiers: whether fences hold on the real device, and how fast the copies are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting
from octavo.kernels.base import Kernels
from octavo.kernels.select import select
from octavo.scheduler.plan import StepPlan
from octavo.workers.copy_stream import CopyStream
from octavo.workers.copy_thread import CopyThread
from octavo.workers.crossing import Gathering
from octavo.workers.host import host_blocks
from octavo.workers.place import tiers_on
from octavo.workers.tiers import Pair, Tiers
from octavo.workers.transfers import cuda_copy

BLOCKS, HOST_BLOCKS = 64, 32
AS_THEY_LIE = Gathering(below=0)
GATHERED = Gathering(below=2**40, saving=0)
Make = Callable[..., Tiers]
SLOW = 2048  # a product of this size keeps the device busy while the copies run


def check_fences(setting: Setting, report: Report) -> None:
    """Random plans over blocks that hold one number each, with computing that is slow to read and
    to write them, against the same plans done one thing at a time; with blocks that are gathered on
    their way, and as they lie."""
    for name, gathering in (("as they lie", AS_THEY_LIE), ("gathered", GATHERED)):
        if gathering is AS_THEY_LIE or has_streams(setting):
            _check_fences(setting, report, name, gathering)


def _check_fences(setting: Setting, report: Report, way: str, gathering: Gathering) -> None:
    width = 64 if setting.tiny else 32 * 1024  # of int64: 256 KiB
    steps = 20 if setting.tiny else 200
    for seed in range(1 if setting.tiny else 3):
        tiers, cache, host = _pools(setting, width, gathering)
        busy = torch.randn(8 if setting.tiny else SLOW, 8 if setting.tiny else SLOW)
        busy = busy.to(setting.device)
        found = []
        device, backing = list(range(BLOCKS)), [-block for block in range(HOST_BLOCKS)]
        expected = []
        for plan, writes in _plans(seed, steps):
            tiers.before(plan, writes)
            busy = busy @ busy / busy.norm()
            found.append((cache.amin(1), cache.amax(1)))  # what every block holds, all of it
            if writes:
                numbers = torch.tensor(list(writes), device=setting.device)
                values = torch.tensor(list(writes.values()), device=setting.device)
                cache[numbers] = values[:, None].expand(-1, width)
            tiers.after(plan)
            _follow(plan, writes, device, backing, expected)
        last = StepPlan(steps, [], swap_in=[(0, 1)])
        tiers.before(last, [1])  # behind all that came before
        setting.synchronize()
        wrong = [
            step
            for step, ((least, most), right) in enumerate(zip(found, expected, strict=True))
            if least.tolist() != right or most.tolist() != right
        ]
        report.check(f"fences, {way}, seed {seed}: what {steps} steps find", not wrong, wrong[:5])
        kept = host.view(torch.int64)
        right = kept[:, 0].tolist() == backing and bool((kept == kept[:, :1]).all())
        report.check(f"fences, {way}, seed {seed}: what the host has", right)


def _pools(setting: Setting, width: int, gathering: Gathering) -> tuple[Tiers, Tensor, Tensor]:
    cache = torch.arange(BLOCKS).repeat(width, 1).T.contiguous().to(setting.device)
    host = host_blocks(HOST_BLOCKS, width * 8, setting.device)
    host.view(torch.int64)[:] = -torch.arange(HOST_BLOCKS)[:, None]
    kernels = select(setting.device, setting.kernels)
    return tiers_of(setting, cache, host, kernels, gathering), cache, host


def _plans(seed: int, steps: int) -> Iterator[tuple[StepPlan, dict[int, int]]]:
    source = random.Random(seed)

    def pairs(sources: int, targets: int) -> list[tuple[int, int]]:
        chosen = source.sample(range(targets), source.choice([0, 0, 1, 4, 12]))
        return [(source.randrange(sources), target) for target in chosen]

    for step in range(steps):
        plan = StepPlan(
            step,
            [],
            swap_out=pairs(BLOCKS, HOST_BLOCKS),
            swap_in=pairs(HOST_BLOCKS, BLOCKS),
            copy=pairs(BLOCKS, BLOCKS),
            store=pairs(BLOCKS, HOST_BLOCKS),
        )
        yield plan, {block: 1000 * step + block for block in source.sample(range(BLOCKS), 6)}


def _follow(
    plan: StepPlan,
    writes: dict[int, int],
    device: list[int],
    host: list[int],
    expected: list[list[int]],
) -> None:
    for read, written, moves in (
        (device, host, plan.swap_out),
        (host, device, plan.swap_in),
        (device, device, plan.copy),
    ):
        for source, target in moves:
            written[target] = read[source]
    expected.append(device.copy())
    for block, value in writes.items():
        device[block] = value
    for source, target in plan.store:
        host[target] = device[source]


def measure_copies(setting: Setting, report: Report) -> None:
    """GB/s of scattered blocks both ways, and their share of one large copy of as many bytes; on a
    GPU also with a call for each block, to see whether a call for many of them pays, gathered and
    as they lie, and in both directions at once. Of blocks smaller than 256 KiB nothing is
    expected."""
    for size in (2**16,) if setting.tiny else (2**14, 2**16, 2**17, 2**18, 2**19, 2**21):
        count = 16 if setting.tiny else min(8192, 512 * 2**20 // size)
        cache = torch.zeros(count, size, dtype=torch.uint8, device=setting.device)
        host = host_blocks(count, size, setting.device)
        kernels = select(setting.device, setting.kernels)
        make = partial(tiers_of, setting, cache, host, kernels)
        targets = list(range(count))
        random.Random(0).shuffle(targets)
        _measure_scattered(setting, report, make, list(enumerate(targets)), cache, host)
        if has_streams(setting):
            if size <= 2**18:
                _measure_gathered(setting, report, make, targets, size)
            _measure_both_ways(setting, report, make, targets, size)


def has_streams(setting: Setting) -> bool:
    return setting.device.type == "cuda"


def tiers_of(
    setting: Setting,
    cache: Tensor,
    host: Tensor,
    kernels: Kernels,
    gathering: Gathering | None = None,
    together: bool = True,
) -> Tiers:
    """As a worker has them, or, on a GPU, with another way to copy."""
    if setting.device.type == "cpu":
        return tiers_on(setting.device)(cache, host, kernels)
    return CopyStream(cache, host, kernels, copy=cuda_copy(together), gathering=gathering)


def _measure_scattered(
    setting: Setting, report: Report, make: Make, pairs: list[Pair], cache: Tensor, host: Tensor
) -> None:
    """By copies of single blocks, as none of their neighbours are neighbours."""
    tiers = make(AS_THEY_LIE)
    singly = make(AS_THEY_LIE, together=False) if has_streams(setting) else None
    for way, plan in _both(pairs).items():
        blocks = min(_run(setting, tiers, plan) for _ in range(3))
        whole = min(_copy(setting, cache, host, way) for _ in range(3))
        size = host.shape[1]
        name = f"blocks of {size // 1024} KiB {way}"
        met = whole / blocks >= 0.8 or size < 2**18
        report.aim(f"{name}, 80 % of one copy", met, round(whole / blocks, 3))
        report.figures[name] = {
            "GB/s": round(host.nbytes / blocks / 1e9, 2),
            "GB/s in one copy": round(host.nbytes / whole / 1e9, 2),
            "share": round(whole / blocks, 3),
        }
        if singly is not None:
            seconds = min(_run(setting, singly, plan) for _ in range(3))
            report.figures[name]["GB/s, a call for each"] = round(host.nbytes / seconds / 1e9, 2)


def _measure_gathered(
    setting: Setting, report: Report, make: Make, blocks: list[int], size: int
) -> None:
    """Blocks that are scattered on the device and neighbours on the host: whether it pays to gather
    them, which `Gathering`'s thresholds are to follow."""
    for count in sorted({min(32, len(blocks)), len(blocks)}):
        pairs = list(zip(blocks, range(count), strict=False))
        for way, plan in _both(pairs).items():
            rates = {}
            for name, gathering in (
                ("gathered", GATHERED),
                ("as they lie", AS_THEY_LIE),
                ("as a worker does", Gathering()),
            ):
                tiers = make(gathering)
                seconds = min(_run(setting, tiers, plan) for _ in range(4))
                rates[name] = round(count * size / seconds / 1e9, 2)
            name = f"{count} blocks of {size // 1024} KiB {way}, neighbours on the host"
            report.figures[name] = {f"GB/s {how}": rate for how, rate in rates.items()}
            nearly = 0.8 * max(rates["gathered"], rates["as they lie"])
            met = rates["as a worker does"] >= nearly
            report.aim(f"{name}, the way chosen is the quicker", met, rates)


def _measure_both_ways(
    setting: Setting, report: Report, make: Make, blocks: list[int], size: int
) -> None:
    """Half of the blocks go out while the others come in, beside one after the other."""
    half = len(blocks) // 2
    out = StepPlan(0, [], store=list(zip(blocks[:half], range(half), strict=True)))
    into = StepPlan(1, [], swap_in=list(zip(range(half, 2 * half), blocks[half:], strict=True)))
    tiers = make()
    alone = sum(min(_run(setting, tiers, plan) for _ in range(3)) for plan in (out, into))
    together = min(_run(setting, tiers, out, into) for _ in range(3))
    report.figures[f"blocks of {size // 1024} KiB, both ways at once"] = {
        "GB/s": round(2 * half * size / together / 1e9, 2),
        "GB/s one after the other": round(2 * half * size / alone / 1e9, 2),
    }


def _both(pairs: list[Pair]) -> dict[str, StepPlan]:
    """Of pairs (device block, host block)."""
    inward = [(host, device) for device, host in pairs]
    return {"out": StepPlan(0, [], store=pairs), "in": StepPlan(0, [], swap_in=inward)}


def _run(setting: Setting, tiers: Tiers, *plans: StepPlan) -> float:
    setting.synchronize()
    began = time.perf_counter()
    for plan in plans:
        tiers.before(plan, [])
        tiers.after(plan)
    if isinstance(tiers, CopyThread):
        tiers._await(tiers._issued)
    setting.synchronize()
    return max(time.perf_counter() - began, 1e-9)


def _copy(setting: Setting, cache: Tensor, host: Tensor, way: str) -> float:
    setting.synchronize()
    began = time.perf_counter()
    if way == "out":
        host.copy_(cache, non_blocking=True)
    else:
        cache.copy_(host, non_blocking=True)
    setting.synchronize()
    return max(time.perf_counter() - began, 1e-9)
