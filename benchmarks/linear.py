"""Speed of matrix products with a model's weights: the kernels', torch's and oneDNN's prepacked.

    python benchmarks/linear.py [--threads 2] [--dtype bfloat16] [--model smollm2] [--rows 1 16 64]

Each product is timed over enough weights that no cache holds them, turn by turn. Of the first,
GB/s of weight read is given as a share of a plain read, and its arithmetic as a share of torch's
product of two large square matrices, both measured in the same minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from attention import quick
from machine import describe, row
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.kernels.memory import prefer_huge_pages
from octavo.kernels.select import select

# [outputs, inputs] of qkv, output, gate and up, down, head
SHAPES = {
    "smollm2": [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)],
    "qwen3": [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)],
}
ROWS = [1, 4, 16, 32, 64, 128, 256, 512]
BYTES = 200e6  # of weights to walk through before any is read again
SIDE = 2048  # of the large square matrices


def products(
    kernels: Kernels, weights: list[Tensor], dtype: torch.dtype
) -> Callable[[int], list[Callable[[], object]]]:
    """For a number of rows: multiplying by all weights our way, by F.linear, and prepacked."""
    outputs, inputs = weights[0].shape
    packed = [kernels.pack(weight) for weight in weights]

    def at(rows: int) -> list[Callable[[], object]]:
        x, out = torch.randn(rows, inputs).to(dtype), torch.empty(rows, outputs, dtype=dtype)
        reordered = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]

        def ours() -> None:
            for weight in packed:
                kernels.linear(x, weight, None, out)

        def plain() -> None:
            for weight in weights:
                F.linear(x, weight)

        def prepacked() -> None:
            for weight in reordered:
                torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

        return [ours, plain, prepacked]

    return at


def limits(dtype: torch.dtype, seconds: float) -> tuple[float, float]:
    """Bytes read and multiply-adds done a second by torch."""
    data = torch.empty(64 * 2**20)
    prefer_huge_pages(data)
    square = torch.randn(SIDE, SIDE).to(dtype)
    read, multiply = quick([data.fill_(1).sum, partial(torch.mm, square, square)], seconds)
    return data.nbytes / read, SIDE**3 / multiply


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--model", choices=SHAPES, default="smollm2")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="per row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    kernels = select(torch.device("cpu"))
    print(f"{describe()}; {options.threads} threads, {options.dtype}, {kernels.name} kernels\n")
    print(row("outputs x inputs", "rows", "ours, us", "F.linear", "prepacked", "read", "peak"))
    print(row(*["---"] * 7))
    for outputs, inputs in SHAPES[options.model]:
        size = outputs * inputs * dtype.itemsize
        count = max(1, round(BYTES / size))
        weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(count)]
        runs = products(kernels, weights, dtype)
        for rows in options.rows:
            times = [seconds / count for seconds in quick(runs(rows), options.seconds)]
            read, peak = limits(dtype, options.seconds / 4)
            ours, *theirs = times
            print(
                row(
                    f"{outputs}x{inputs}",
                    rows,
                    f"{ours * 1e6:.0f}",
                    *(f"{time * 1e6:.0f} ({time / ours:.2f}x)" for time in theirs),
                    f"{size / ours / read:.0%} of {read / 1e9:.0f} GB/s",
                    f"{rows * outputs * inputs / ours / peak:.0%} of {2 * peak / 1e12:.2f} TFLOP/s",
                ),
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
