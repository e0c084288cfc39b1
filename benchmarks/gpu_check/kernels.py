"""Every kernel of the device against plain torch: `kernels/reference.py`, on the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu_check.report import CannotRun, Report
from benchmarks.gpu_check.setting import Setting
from octavo.kernels.base import Batch, Kernels, cache_shape
from octavo.kernels.quantized import FP8
from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.select import NAMES, missing_for_fp8, select

# Largest difference that rounding explains, of results of about 1; sums of many are rounded once.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
LAYERS, LAYER = 3, 1

Work = tuple[int, int, int]  # a row's positions start..end are the queries: row, start, end


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    block_size: int = 16


SHAPES = [
    Shape(8, 8, 64),
    Shape(9, 3, 64),
    Shape(32, 8, 128),
    Shape(14, 2, 64),
    Shape(16, 2, 128),
    Shape(16, 1, 128, 32),
]
TINY_SHAPES = [Shape(4, 2, 16)]
LENGTHS = [1, 15, 16, 17, 100, 640, 1500, 33]
TINY_LENGTHS = [1, 16, 37]
WINDOW = 24  # tokens
PREFIX, SHARERS = 640, [1, 40, 8, 17, 3, 90, 30, 2, 16]  # enough of both to be attended at once


class Contexts:
    """Rows of random tokens with a block table each; the blocks are shuffled, the null block is
    nobody's."""

    def __init__(self, shape: Shape, lengths: Sequence[int], setting: Setting, seed: int) -> None:
        self.shape, self.lengths, self.setting = shape, lengths, setting
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-length // shape.block_size) for length in lengths]
        self.num_blocks = sum(counts) + 2
        order = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        width = (shape.heads + 2 * shape.kv_heads) * shape.dim
        self.qkv = [
            torch.randn(length, width, generator=generator).to(setting.device, setting.torch_dtype)
            for length in lengths
        ]

    def share(self, tokens: int) -> None:
        """Has all rows begin with the first one's tokens, and with its blocks."""
        blocks = tokens // self.shape.block_size
        for table, qkv in zip(self.tables[1:], self.qkv[1:], strict=True):
            table[:blocks] = self.tables[0][:blocks]
            qkv[:tokens] = self.qkv[0][:tokens]

    def cache(self, dtype: torch.dtype | None = None) -> Tensor:
        shape = self.shape
        whole = cache_shape(self.num_blocks, LAYERS, shape.kv_heads, shape.block_size, shape.dim)
        dtype = dtype or self.setting.torch_dtype
        return torch.zeros(whole, dtype=dtype, device=self.setting.device)

    def written(self, kernels: Kernels, dtype: torch.dtype | None = None) -> Tensor:
        """A layer of a cache with the keys and values of all rows."""
        cache = self.cache(dtype)[:, LAYER]
        everything = [(row, 0, length) for row, length in enumerate(self.lengths)]
        _, key, value = self.parts(everything)
        batch = self.batch(everything)
        kernels.begin_step(batch)
        kernels.write_kv(key, value, cache, batch)
        return cache

    def batch(self, work: Sequence[Work], fill: int = 0) -> Batch:
        """The pieces, and `fill` rows on the null block, as a graph's batch has them if there are
        any."""
        size = self.shape.block_size
        qo, kv, indices, last, slots = [0], [0], [], [], []
        for row, start, end in work:
            table = self.tables[row][: -(-end // size)]
            indices += table
            qo.append(qo[-1] + end - start)
            kv.append(kv[-1] + len(table))
            last.append(end - (len(table) - 1) * size)
            slots += [table[p // size] * size + p % size for p in range(start, end)]
        for _ in range(fill):
            indices.append(0)
            qo.append(qo[-1] + 1)
            kv.append(kv[-1] + 1)
            last.append(1)
            slots.append(0)
        host = Batch(
            *(torch.tensor(x, dtype=torch.int32) for x in (qo, kv, indices, last, slots)),
            block_size=size,
        )
        if self.setting.device.type == "cpu":
            return host
        device = self.setting.device
        return Batch(
            *(
                getattr(host, name).to(device)
                for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "slots")
            ),
            block_size=size,
            host=host,
            static=fill > 0,
        )

    def parts(self, work: Sequence[Work], fill: int = 0) -> list[Tensor]:
        """Query, key and value, slices of one matrix, and the positions."""
        rows = [self.qkv[row][start:end] for row, start, end in work]
        rows.append(self.qkv[0][:1].expand(fill, -1))
        shape = self.shape
        sizes = [n * shape.dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        return [part.unflatten(-1, (-1, shape.dim)) for part in torch.cat(rows).split(sizes, -1)]

    def attend(
        self,
        kernels: Kernels,
        work: Sequence[Work],
        fill: int = 0,
        window: int | None = None,
        cache: Tensor | None = None,
    ) -> Tensor:
        """Writes all rows' keys and values, unless `cache` has them, then attends for `work`."""
        if cache is None:
            cache = self.written(kernels)
        batch = self.batch(work, fill)
        kernels.begin_step(batch)
        query, key, value = self.parts(work, fill)
        kernels.write_kv(key, value, cache, batch)
        out = torch.full(query.shape, torch.nan, dtype=query.dtype, device=query.device)
        kernels.attention(query, cache, batch, self.shape.dim**-0.5, out, window)
        return out[: len(out) - fill]


def works(lengths: Sequence[int]) -> dict[str, list[Work]]:
    """Batches of every kind."""
    decode = [(row, length - 1, length) for row, length in enumerate(lengths)]
    whole = [(row, 0, length) for row, length in enumerate(lengths)]
    chunks = [(row, length // 2, length) for row, length in enumerate(lengths) if length > 1]
    mixed = [(decode, whole, chunks)[row % 2][row] for row in range(len(lengths))]
    return {"decode": decode, "prefill": whole, "chunks": chunks, "mixed": mixed}


def check_triton(setting: Setting, report: Report) -> None:
    """The same again, with Triton's attention where FlashInfer's was checked; and float32."""
    if setting.device.type == "cpu" or "triton" not in NAMES:
        raise CannotRun("Triton's kernels are for a GPU")
    check_kernels(replace(setting, kernels="triton"), report)
    check_kernels(replace(setting, kernels="triton", dtype="float32"), report)


def check_kernels(setting: Setting, report: Report) -> None:
    kernels, reference = select(setting.device, setting.kernels), ReferenceKernels()
    report.figures["kernels"] = kernels.name
    compare = Comparison(setting, report, kernels, reference)
    for shape in TINY_SHAPES if setting.tiny else SHAPES:
        report.attempt(f"attention {shape}", lambda shape=shape: compare.attention(shape))
        report.attempt(f"rotary {shape}", lambda shape=shape: compare.rotary(shape))
    for name in (
        *("window", "prefix", "narrow_cache"),
        *("norms", "products", "activation", "largest", "blocks"),
    ):
        report.attempt(name, getattr(compare, name))


@dataclass
class Comparison:
    setting: Setting
    report: Report
    kernels: Kernels
    reference: ReferenceKernels

    def close(self, name: str, found: Tensor, right: Tensor, scale: float = 1.0) -> None:
        error = float((found.float() - right.float()).abs().max()) if found.numel() else 0.0
        bound = TOLERANCE[self.setting.torch_dtype] * max(scale, 1.0)
        self.report.check(name, error <= bound, f"differs by {error:.3g}, allowed is {bound:.3g}")

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        return values.to(self.setting.device, self.setting.torch_dtype)

    def attention(self, shape: Shape) -> None:
        lengths = TINY_LENGTHS if self.setting.tiny else LENGTHS
        contexts = Contexts(shape, lengths, self.setting, seed=1)
        for name, work in works(lengths).items():
            right = contexts.attend(self.reference, work)
            found = contexts.attend(self.kernels, work)
            self.close(f"{name} attention {shape}", found, right)
            again = contexts.attend(self.kernels, work)
            same = torch.equal(found, again)
            self.report.check(f"{name} attention {shape} repeats", same)
        decode = works(lengths)["decode"]
        right = contexts.attend(self.reference, decode)
        filled = contexts.attend(self.kernels, decode, fill=3)
        self.close(f"attention filled up for a graph {shape}", filled, right)

    def window(self) -> None:
        shape = TINY_SHAPES[0] if self.setting.tiny else SHAPES[1]
        contexts = Contexts(shape, TINY_LENGTHS if self.setting.tiny else LENGTHS, self.setting, 3)
        for name, work in works(contexts.lengths).items():
            right, found = (
                contexts.attend(kernels, work, window=WINDOW)
                for kernels in (self.reference, self.kernels)
            )
            self.close(f"{name} attention, {WINDOW} tokens far", found, right)

    def prefix(self) -> None:
        """All rows begin alike, so that what they share may be attended for all of them at once."""
        shape = TINY_SHAPES[0] if self.setting.tiny else SHAPES[2]
        contexts = Contexts(shape, [PREFIX + own for own in SHARERS], self.setting, 4)
        contexts.share(PREFIX)
        decode = works(contexts.lengths)["decode"]
        chunk = [*decode[:5], (5, PREFIX, contexts.lengths[5]), *decode[6:]]
        for name, work in (("decode", decode), ("mixed", chunk)):
            right, found = (contexts.attend(k, work) for k in (self.reference, self.kernels))
            self.close(f"{name} attention, a prefix of {PREFIX} tokens shared", found, right)

    def narrow_cache(self) -> None:
        if not self.has_fp8:
            return
        for shape in TINY_SHAPES if self.setting.tiny else SHAPES:
            lengths = TINY_LENGTHS if self.setting.tiny else LENGTHS
            contexts = Contexts(shape, lengths, self.setting, seed=5)
            right, found = (contexts.written(k, FP8) for k in (self.reference, self.kernels))
            same = torch.equal(found.float(), right.float())
            self.report.check(f"what an FP8 cache holds {shape}", same)
            for name, work in works(lengths).items():
                self.close(
                    f"{name} attention, FP8 cache {shape}",
                    contexts.attend(self.kernels, work, cache=right),
                    contexts.attend(self.reference, work, cache=right),
                )

    @property
    def has_fp8(self) -> bool:
        reason = missing_for_fp8(self.kernels, self.setting.device)
        self.report.figures["FP8"] = reason or "checked"
        return reason is None

    def rotary(self, shape: Shape) -> None:
        contexts = Contexts(shape, [40, 7], self.setting, seed=2)
        work = [(0, 3, 40), (1, 0, 7)]
        batch = contexts.batch(work)
        angles = torch.outer(torch.arange(64.0), torch.rand(shape.dim // 2)).to(self.setting.device)
        cos_sin = torch.stack((angles.cos(), angles.sin()), 1)
        positions = torch.tensor([*range(3, 40), *range(7)], dtype=torch.int32)
        positions = positions.to(self.setting.device)
        results = []
        for kernels in (self.kernels, self.reference):
            cache = contexts.cache()[:, LAYER]
            query, key, value = (part.clone() for part in contexts.parts(work))
            kernels.begin_step(batch)
            kernels.rotary_write_kv(query, key, value, cos_sin, positions, cache, batch)
            out = torch.zeros_like(query)
            part = contexts.batch([(1, 0, 7)])
            kernels.begin_step(part)
            kernels.attention(query[37:], cache, part, shape.dim**-0.5, out[37:])
            results.append((query, key, out))
        for name, found, right in zip(("queries", "keys", "use"), *results, strict=True):
            self.close(f"rotary {name} {shape}", found, right, 4.0)

    def norms(self) -> None:
        width = 64 if self.setting.tiny else 4096
        x, residual = self.random(7, width), self.random(7, width, seed=1)
        weight = self.random(width, seed=2)
        found, right = torch.empty_like(x), torch.empty_like(x)
        self.kernels.rms_norm(x, weight, 1e-5, found)
        self.reference.rms_norm(x, weight, 1e-5, right)
        self.close("rms_norm", found, right, 8.0)
        ours, theirs = residual.clone(), residual.clone()
        self.kernels.add_rms_norm(x, ours, weight, 1e-5, found)
        self.reference.add_rms_norm(x, theirs, weight, 1e-5, right)
        self.close("add_rms_norm", found, right, 8.0)
        self.close("add_rms_norm's sum", ours, theirs, 4.0)
        heads = self.random(5, 24, 64)[:, 4:12]  # a part of a fused product
        weight = self.random(64, seed=3)
        ours, theirs = torch.empty_like(heads), torch.empty_like(heads)
        self.kernels.rms_norm(heads, weight, 1e-5, ours)
        self.reference.rms_norm(heads, weight, 1e-5, theirs)
        self.close("rms_norm of heads", ours, theirs, 8.0)

    def products(self) -> None:
        inputs, outputs = (64, 96) if self.setting.tiny else (2048, 3072)
        weight, bias = self.random(outputs, inputs) * inputs**-0.5, self.random(outputs, seed=1)
        narrow = self.has_fp8
        for rows in (1, 3, 16, 130):
            x = self.random(rows, inputs, seed=rows)
            found = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
            right = torch.empty_like(found)
            for form in ("plain", "int8", *(["fp8"] if narrow else [])):
                for term in (None, bias):
                    for kernels, out in ((self.kernels, found), (self.reference, right)):
                        packed = (
                            kernels.pack(weight.clone())
                            if form == "plain"
                            else kernels.quantize(weight, form=form)
                        )
                        kernels.linear(x, packed, term, out)
                    what = f"linear, {form}, {rows} rows, {'no' if term is None else 'a'} bias"
                    self.close(what, found, right, 4.0)
            ours, theirs = (torch.empty_like(found[:, : outputs // 2]) for _ in range(2))
            for kernels, out in ((self.kernels, ours), (self.reference, theirs)):
                packed = kernels.pack(weight.clone(), True)
                kernels.gated_linear(x, packed, None, torch.empty_like(found), out)
            self.close(f"gated_linear, {rows} rows", ours, theirs, 4.0)

    def activation(self) -> None:
        gate_up = self.random(9, 256) * 3
        ours, theirs = (torch.empty_like(gate_up[:, :128]) for _ in range(2))
        self.kernels.silu_and_mul(gate_up, ours)
        self.reference.silu_and_mul(gate_up, theirs)
        self.close("silu_and_mul", ours, theirs, 16.0)

    def largest(self) -> None:
        width = 100 if self.setting.tiny else 151_936
        x = self.random(11, width)
        x[1, 7] = x[1, 90] = 50.0
        x[2, 60] = torch.nan
        x[3] = -torch.inf
        x[4, 5] = torch.inf
        (ours, most), (theirs, right) = self.kernels.argmax(x), self.reference.argmax(x)
        self.report.check("argmax", ours.tolist() == theirs.tolist(), ours.tolist())
        self.report.check("argmax's numbers", torch.equal(most.nan_to_num(9), right.nan_to_num(9)))

    def blocks(self) -> None:
        cache = self.random(12, LAYERS, 2, 2, 16, 64)
        pairs = torch.tensor([[3, 1], [3, 5], [11, 0], [7, 2]], device=cache.device)
        ours, theirs = cache.clone(), cache.clone()
        self.kernels.copy_blocks(ours, pairs)
        self.reference.copy_blocks(theirs, pairs)
        self.report.check("copy_blocks", torch.equal(ours, theirs))
        some, staged = pairs[1:, 0], torch.empty_like(cache[:3])
        self.kernels.gather_blocks(cache, some, staged)
        self.report.check("gather", torch.equal(staged, cache[some]))
        self.kernels.scatter_blocks(staged, some, ours.zero_())
        self.report.check("scatter", torch.equal(ours[some], cache[some]))
