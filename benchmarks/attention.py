"""Speed of one layer's paged attention, beside what the memory and torch's own attention allow.

    python benchmarks/attention.py [--threads 2] [--dtype bfloat16] [--model smollm2] [--slow]

Decode rows give GB/s of keys and values read, over enough layers that no cache holds them, and
the share of a plain read of as many bytes measured in the same minute; then what paging costs: the
same kernel over blocks that lie in order, each layer's in one piece of memory. Prefill rows give
milliseconds beside torch's attention over contiguous keys and values, without any gathering.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.kernels.base import Batch, Kernels, cache_shape
from octavo.kernels.memory import prefer_huge_pages
from octavo.kernels.select import select

Shape = tuple[int, int, int]
SHAPES: dict[str, Shape] = {"smollm2": (9, 3, 64), "qwen3": (16, 8, 128), "llama2": (32, 32, 128)}
DECODES = [(1, 128), (1, 2048), (16, 512), (16, 2048), (64, 128), (64, 2048)]
PREFILLS = [(512, 512), (2048, 2048), (128, 2048)]
BLOCK = 16
BYTES = 600e6  # of keys and values to walk through before any is read again
LAYERS = 30


def quick(runs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Seconds of each run, turn by turn, as the fastest tenth of its turns had it or better: other
    programs on the machine make single turns slower, never faster."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < end:
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [sorted(taken)[len(taken) // 10] for taken in times]


def ragged(rows: list[tuple[int, int]], scattered: bool = True) -> tuple[Batch, int]:
    """A batch of (context, queries) rows, and the blocks it needs, which lie `scattered` or in
    order."""
    counts = [-(-context // BLOCK) for context, _ in rows]
    total = sum(counts)
    order = list(range(1, total + 1))
    if scattered:
        order = (torch.randperm(total, generator=torch.Generator().manual_seed(0)) + 1).tolist()
    starts, firsts, slots = [0], [0], []
    for (context, queries), count in zip(rows, counts, strict=True):
        blocks = order[firsts[-1] : firsts[-1] + count]
        slots += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(context - queries, context)]
        starts.append(starts[-1] + queries)
        firsts.append(firsts[-1] + count)
    last = [context - (count - 1) * BLOCK for (context, _), count in zip(rows, counts, strict=True)]
    qo, kv, indices, lengths, places = (
        torch.tensor(x, dtype=torch.int32) for x in (starts, firsts, order, last, slots)
    )
    return Batch(qo, kv, indices, lengths, places, BLOCK), total + 1


def decode(
    kernels: list[Kernels],
    batch: int,
    context: int,
    shape: Shape,
    dtype: torch.dtype,
    seconds: float,
) -> tuple[list[tuple[float, float]], float]:
    """For each of `kernels`, milliseconds and GB/s of one layer of a decode step; then the GB/s
    of summing a tensor of as many bytes."""
    heads, kv_heads, dim = shape
    index, num_blocks = ragged([(context, 1)] * batch)
    size = batch * context * 2 * kv_heads * dim * dtype.itemsize
    layers = max(2, min(LAYERS, round(BYTES / size)))
    cache = torch.empty(cache_shape(num_blocks, layers, kv_heads, BLOCK, dim), dtype=dtype)
    prefer_huge_pages(cache)
    cache.zero_()
    query = torch.randn(batch, heads, dim).to(dtype)
    out = torch.empty_like(query)
    data = torch.empty(layers, size // 4)
    prefer_huge_pages(data)
    pieces = cycle(data.fill_(1))
    views = cycle([cache[:, layer] for layer in range(layers)])

    def step(implementation: Kernels) -> None:
        implementation.attention(query, next(views), index, dim**-0.5, out)

    def read() -> object:
        return next(pieces).sum()

    *taken, reading = quick([*(partial(step, k) for k in kernels), read], seconds)
    return [(t * 1e3, size / t / 1e9) for t in taken], size / reading / 1e9


def paging(
    kernels: Kernels, batch: int, context: int, shape: Shape, dtype: torch.dtype, seconds: float
) -> tuple[float, float]:
    """Milliseconds of one layer of a decode step over scattered blocks of a cache of all layers,
    and over a cache of each layer's own whose blocks lie in order."""
    heads, kv_heads, dim = shape
    size = batch * context * 2 * kv_heads * dim * dtype.itemsize
    layers = max(2, min(LAYERS, round(BYTES / size)))
    query = torch.randn(batch, heads, dim).to(dtype)
    out = torch.empty_like(query)

    def over(scattered: bool) -> Callable[[], object]:
        index, blocks = ragged([(context, 1)] * batch, scattered)
        whole = cache_shape(blocks, layers if scattered else 1, kv_heads, BLOCK, dim)
        caches = [torch.empty(whole, dtype=dtype) for _ in range(1 if scattered else layers)]
        for cache in caches:
            prefer_huge_pages(cache)
            cache.zero_()
        views = cycle([view for cache in caches for view in cache.unbind(1)])
        return lambda: kernels.attention(query, next(views), index, dim**-0.5, out)

    paged, contiguous = quick([over(True), over(False)], seconds)
    return paged * 1e3, contiguous * 1e3


def prefill(
    kernels: list[Kernels],
    queries: int,
    context: int,
    shape: Shape,
    dtype: torch.dtype,
    seconds: float,
) -> list[float]:
    """Milliseconds of one layer's attention of the last `queries` tokens of a context: for each of
    `kernels`, then for torch over contiguous keys and values, one per query head."""
    heads, kv_heads, dim = shape
    index, num_blocks = ragged([(context, queries)])
    cache = torch.zeros(cache_shape(num_blocks, 1, kv_heads, BLOCK, dim), dtype=dtype)[:, 0]
    query = torch.randn(queries, heads, dim).to(dtype)
    out = torch.empty_like(query)
    key, value = torch.randn(2, 1, heads, context, dim).to(dtype)
    mask: Tensor | None = None
    if queries < context:
        mask = torch.ones(queries, context, dtype=torch.bool).tril(context - queries)
    theirs = partial(
        scaled_dot_product_attention,
        query.transpose(0, 1)[None],
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
    )
    ours = [partial(k.attention, query, cache, index, dim**-0.5, out) for k in kernels]
    return [seconds * 1e3 for seconds in quick([*ours, theirs], seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], nargs="*", default=["bfloat16", "float32"]
    )
    parser.add_argument("--model", choices=SHAPES, default="smollm2")
    parser.add_argument("--seconds", type=float, default=1.0, help="per row")
    parser.add_argument("--slow", action="store_true", help="torch's and the reference kernels too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = SHAPES[options.model]
    names = ["native", "torch", "reference"] if options.slow else ["native"]
    kernels = [select(torch.device("cpu"), name) for name in names]
    columns = "".join(f"{name:>18}" for name in names)
    print(f"{options.model} {shape} (heads, KV heads, head_dim), {options.threads} threads")
    for dtype in (getattr(torch, name) for name in options.dtype):
        print(f"\n{dtype}: decode, ms (GB/s) a layer\n{'batch x context':<15}{columns}", end="")
        print("   native's share of a plain read")
        for batch, context in DECODES:
            figures, read = decode(kernels, batch, context, shape, dtype, options.seconds)
            cells = "".join(f"{f'{ms:.3f} ({speed:.1f})':>18}" for ms, speed in figures)
            share = f"{figures[0][1] / read:.0%} of {read:.0f} GB/s"
            print(f"{f'{batch}x{context}':<15}{cells}   {share}", flush=True)
        print(f"\n{dtype}: what paging costs, ms a layer")
        for batch, context in DECODES:
            paged, whole = paging(kernels[0], batch, context, shape, dtype, 2 * options.seconds)
            cells = f"paged {paged:.3f}, contiguous {whole:.3f}: {paged / whole - 1:+.1%}"
            print(f"{f'{batch}x{context}':<15}{cells}", flush=True)
        print(f"\n{dtype}: prefill, ms a layer\n{'new of context':<15}{columns}", end="")
        print(f"{'torch, contiguous':>20}")
        for queries, context in PREFILLS:
            *ours, theirs = prefill(kernels, queries, context, shape, dtype, options.seconds)
            cells = "".join(f"{ms:>18.2f}" for ms in ours)
            print(f"{f'{queries} of {context}':<15}{cells}{theirs:>20.2f}", flush=True)


if __name__ == "__main__":
    main()
