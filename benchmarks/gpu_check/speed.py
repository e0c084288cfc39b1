"""Figures: decode attention beside what the memory allows and beside contiguous attention, whole
steps with and without graphs, and how long the device waits between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.engine import Engine, greedy, random_prompts
from benchmarks.gpu_check.models import ONE_BILLION, TINY, write_model
from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting
from octavo.kernels.base import Batch, Kernels, cache_shape
from octavo.kernels.select import select
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Request
from octavo.workers.config import WorkerConfig

BLOCK = 16
HEADS, KV_HEADS, DIM = 32, 8, 128
DECODES = [(1, 8192), (16, 2048), (64, 2048), (256, 1024)]
BATCHES = (1, 16, 64, 256)
WALK = 2 * 2**30  # bytes of keys and values to go through before any is read again


def measure_attention(setting: Setting, report: Report) -> None:
    kernels = select(setting.device, setting.kernels)
    ceiling = _copy_rate(setting)
    report.figures["copy ceiling, GB/s read and written"] = round(ceiling / 1e9, 1)
    for batch, context in [(2, 64)] if setting.tiny else DECODES:
        size = batch * context * 2 * KV_HEADS * DIM * setting.torch_dtype.itemsize
        paged = _attention(setting, kernels, batch, context, scattered=True)
        whole = _attention(setting, kernels, batch, context, scattered=False)
        name, cost = f"decode attention {batch}x{context}", round(paged / whole - 1, 4)
        report.aim(f"{name}, paging costs at most 5 %", cost <= 0.05, cost)
        report.figures[name] = {
            "us": round(paged * 1e6, 1),
            "GB/s": round(size / paged / 1e9, 1),
            "share of the copy ceiling": round(size / paged / ceiling, 3),
            "us, blocks in order in a cache of one layer": round(whole * 1e6, 1),
            "cost of paging": cost,
            "us, torch's attention over contiguous keys": round(
                _contiguous(setting, batch, context) * 1e6, 1
            ),
        }
    _measure_prefix(setting, report, kernels)


def _measure_prefix(setting: Setting, report: Report, kernels: Kernels) -> None:
    """Of a prefix that all rows share: read once a step, and once a row, as in a graph."""
    for batch, context in [(8, 600)] if setting.tiny else [(16, 4096), (64, 4096)]:
        once, each = (
            _attention(setting, kernels, batch, context, scattered=True, prefix=True, static=static)
            for static in (False, True)
        )
        report.figures[f"decode attention {batch}x{context}, one prefix"] = {
            "us, read once": round(once * 1e6, 1),
            "us, read by each row, as in a graph": round(each * 1e6, 1),
        }


def _copy_rate(setting: Setting) -> float:
    """Bytes a second of a large copy within the device, those read and those written."""
    size = 2**20 if setting.tiny else 2 * 2**30
    source = torch.zeros(size, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    return 2 * size / setting.seconds(lambda: target.copy_(source))


def _layers(setting: Setting, size: int) -> int:
    return 2 if setting.tiny else max(2, min(64, WALK // size))


def _attention(
    setting: Setting,
    kernels: Kernels,
    batch: int,
    context: int,
    scattered: bool,
    prefix: bool = False,
    static: bool = False,
) -> float:
    """Seconds of one layer of a decode step. Not scattered, the blocks of a layer lie in order, in
    one piece of memory. With a `prefix`, rows have all blocks but the last in common. A `static`
    batch is one of a graph."""
    count = -(-context // BLOCK)
    total = batch * count + 1
    order = torch.arange(1, total, dtype=torch.int32)
    if scattered:
        order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    if prefix:
        order.view(batch, count)[:, :-1] = order[: count - 1].clone()
    last = context - (count - 1) * BLOCK
    host = Batch(
        torch.arange(batch + 1, dtype=torch.int32),
        torch.arange(0, total, count, dtype=torch.int32),
        order,
        torch.full((batch,), last, dtype=torch.int32),
        order.view(batch, count)[:, -1] * BLOCK + last - 1,
        BLOCK,
    )
    index = host
    if setting.device.type != "cpu":
        names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "slots")
        arrays = (getattr(host, n).to(setting.device) for n in names)
        index = Batch(*arrays, BLOCK, host=host, static=static)
    layers = _layers(setting, batch * context * 2 * KV_HEADS * DIM * setting.torch_dtype.itemsize)
    shape = cache_shape(total, layers if scattered else 1, KV_HEADS, BLOCK, DIM)
    place = {"dtype": setting.torch_dtype, "device": setting.device}
    caches = [torch.zeros(shape, **place) for _ in range(1 if scattered else layers)]
    views = cycle([view for cache in caches for view in cache.unbind(1)])
    query = torch.randn(batch, HEADS, DIM, device=setting.device).to(setting.torch_dtype)
    out = torch.empty_like(query)
    kernels.begin_step(index)
    return setting.seconds(
        lambda: kernels.attention(query, next(views), index, DIM**-0.5, out), times=2 * layers
    )


def _contiguous(setting: Setting, batch: int, context: int) -> float:
    """Seconds of torch's attention for the same, one row behind another without blocks."""
    layers = _layers(setting, batch * context * 2 * KV_HEADS * DIM * setting.torch_dtype.itemsize)
    place: dict[str, Any] = {"dtype": setting.torch_dtype, "device": setting.device}
    both = [torch.zeros(2, batch, KV_HEADS, context, DIM, **place) for _ in range(layers)]
    query = torch.zeros(batch, HEADS, 1, DIM, **place)
    each = cycle(both)

    def attend() -> Tensor:
        key, value = next(each)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    return setting.seconds(attend, times=2 * layers)


def measure_steps(setting: Setting, report: Report) -> None:
    """Output tokens a second with so many sequences at once, contexts of about 512 tokens."""
    sizes = TINY if setting.tiny else ONE_BILLION
    model = write_model(setting.folder, sizes, "llama", setting.dtype)
    for eager in (False, True):
        config = WorkerConfig(
            str(model),
            dtype=setting.dtype,
            device=setting.device.type,
            kernels=setting.kernels,
            max_num_seqs=4 if setting.tiny else 256,
            kv_cache_memory_bytes=8 * 2**20 if setting.tiny else 16 * 2**30,
            swap_space=0,
            enforce_eager=eager,
        )
        began = time.perf_counter()
        engine = Engine(config, enable_prefix_caching=False)
        name = "without graphs" if eager else "with graphs"
        report.figures[f"seconds to start, {name}"] = round(time.perf_counter() - began, 1)
        for batch in (1, 4) if setting.tiny else BATCHES:
            found = _decode(setting, engine, batch)
            report.figures[f"{batch} sequences, {name}"] = found
        if setting.device.type == "cuda" and not eager:
            gaps = report.figures["gap between steps"] = measure_gaps(engine, BATCHES)
            for name, figures in gaps.items():
                share = figures["share of the step"]
                report.aim(f"{name}, the gap is below 5 % of a step", share < 0.05, share)


def _decode(setting: Setting, engine: Engine, batch: int) -> dict[str, float]:
    """Of the steps in which all of them decode, after some that are not counted."""
    context, length = (16, 12) if setting.tiny else (512, 128)
    prompts = random_prompts([context] * batch, 500, seed=batch)
    engine.answer(prompts[: batch // 2 + 1], [greedy(4)] * (batch // 2 + 1))
    engine.timeline.clear()
    began = time.perf_counter()
    engine.answer(prompts, [greedy(length)] * batch)
    ends = [end for rows, end in engine.timeline if rows == batch]
    first = next(at for at, (rows, _) in enumerate(engine.timeline) if rows == batch)
    seconds = max(ends[-1] - ends[0], 1e-9)
    prefill = engine.timeline[first][1] - began
    return {
        "tokens/s": round(batch * (len(ends) - 1) / seconds, 1),
        "ms a step": round(seconds / (len(ends) - 1) * 1e3, 3),
        "prefill tokens/s": round(batch * context / prefill, 1),
    }


def measure_gaps(engine: Engine, batches: Sequence[int], steps: int = 64) -> dict[str, Any]:
    """For how much of a decode step the device has nothing to do: of a stretch of steps, the time
    that is not between a step's first work on the device and its last, as the device came by."""
    found = {}
    for batch in batches:
        for number, prompt in enumerate(random_prompts([64] * batch, 500, seed=1000 + batch)):
            request = Request(f"gap-{batch}-{number}", prompt, greedy(steps + 32))
            engine.scheduler.add(request, time.monotonic())
        stretch = _stretch(engine, steps)
        busy = sum(start.elapsed_time(end) for start, end in stretch)
        whole = stretch[0][0].elapsed_time(stretch[-1][1])
        found[f"{batch} sequences"] = {
            "ms a step": round(whole / len(stretch), 3),
            "share of the step": round(1 - busy / whole, 4),
        }
        for name in engine.scheduler.live_requests:
            engine.scheduler.abort(name)
    return found


def _stretch(engine: Engine, steps: int) -> list[tuple[Any, Any]]:
    """Events at the start and the end of each of the last of so many decode steps."""
    worker, scheduler = engine.worker, engine.scheduler
    events: deque[tuple[Any, Any]] = deque(maxlen=steps)
    forward = worker._forward
    started: list[Any] = []

    def timed(*arguments: Any) -> Tensor:
        started.append(torch.cuda.Event(enable_timing=True))
        started[-1].record()
        return forward(*arguments)

    worker._forward = timed  # type: ignore[method-assign]
    aloft: deque[Any] = deque()
    try:
        for _ in range(2 * steps):
            while len(aloft) < 2:
                plan = scheduler.schedule(time.monotonic())
                if plan is None:
                    break
                started.clear()  # a plan that only drops rows computes nothing
                flight = worker.begin(encode(plan))
                end = torch.cuda.Event(enable_timing=True)
                end.record()
                aloft.append((flight, [(start, end) for start in started]))
            if not aloft:
                break
            flight, span = aloft.popleft()
            raw = worker.finish(flight)
            assert raw is not None
            scheduler.update(decode_result(raw), time.monotonic())
            events += span
        while aloft:
            scheduler.update(decode_result(worker.finish(aloft.popleft()[0]) or b""), 0.0)
    finally:
        worker._forward = forward  # type: ignore[method-assign]
    torch.cuda.synchronize()
    return list(events)
