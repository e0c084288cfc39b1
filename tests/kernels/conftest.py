"""Ragged batches, filled caches, and every build of the kernels that this machine can run."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

from octavo.kernels import build
from octavo.kernels.base import Batch, cache_shape
from octavo.kernels.cpu import CpuKernels
from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.torch_ops import TorchKernels

LAYERS, LAYER = 3, 1


TWIN = "twin"  # tiles in software, where pairs of bfloat16 can be multiplied at all
TWIN_FLAGS = [*build.FLAGS, *build.AVX512_BF16, "-DTILE_TWIN"]
BUILDS = [*build.VECTOR_FLAGS, "portable", TWIN]  # this machine's own is among them


def flags_of(capability):
    if capability == TWIN:
        return TWIN_FLAGS
    return build.FLAGS + build.VECTOR_FLAGS.get(capability, [])


def runs_here(capability):
    needed = build.VECTOR_FLAGS.get("AVX512_BF16" if capability == TWIN else capability, [])
    return set(needed) <= set(build.VECTOR_FLAGS.get(build.processor(), []))


@functools.cache
def libraries():
    """Futures of all builds that this machine can run. They are compiled side by side: who needs
    one of them needs the others soon."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    return {each: pool.submit(build.compiled, flags_of(each)) for each in filter(runs_here, BUILDS)}


def native(capability):
    if not runs_here(capability):
        pytest.skip(f"this processor lacks {capability}")
    return CpuKernels(libraries()[capability].result())


@pytest.fixture(params=[*BUILDS, "torch"])
def kernels(request):
    """Each implementation but the reference; the native one in every build."""
    return TorchKernels() if request.param == "torch" else native(request.param)


@pytest.fixture
def best_kernels():
    library = build.library()
    assert library is not None, "the tests of the native kernels need a C++ compiler"
    return CpuKernels(library)


@pytest.fixture(params=BUILDS)
def native_kernels(request):
    """The native kernels in every build."""
    return native(request.param)


@pytest.fixture
def reference():
    return ReferenceKernels()


@dataclass
class Contexts:
    """Rows of known tokens with a block table each, as a worker would hold them.

    Blocks are shuffled; block 0 belongs to nobody. Queries are slices of a fused qkv matrix.
    """

    lengths: list[int]
    heads: int
    kv_heads: int
    dim: int
    block_size: int
    dtype: torch.dtype
    seed: int = 0

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        counts = [-(-length // self.block_size) for length in self.lengths]
        self.num_blocks = sum(counts) + 2
        order = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        width = (self.heads + 2 * self.kv_heads) * self.dim
        self.qkv = [
            torch.randn(length, width, generator=generator).to(self.dtype)
            for length in self.lengths
        ]

    def empty_cache(self):
        """All layers; what was never written is NaN, which any use of it would spread."""
        shape = cache_shape(self.num_blocks, LAYERS, self.kv_heads, self.block_size, self.dim)
        return torch.full(shape, float("nan"), dtype=self.dtype)

    def batch(self, work):
        """A batch of (row, start, end) pieces, in which positions start..end are the queries."""
        qo, kv, indices, last, slots = [0], [0], [], [], []
        for row, start, end in work:
            table = self.tables[row][: -(-end // self.block_size)]
            indices += table
            qo.append(qo[-1] + end - start)
            kv.append(kv[-1] + len(table))
            last.append(end - (len(table) - 1) * self.block_size)
            for position in range(start, end):
                block, offset = divmod(position, self.block_size)
                slots.append(table[block] * self.block_size + offset)
        arrays = [torch.tensor(x, dtype=torch.int32) for x in (qo, kv, indices, last, slots)]
        return Batch(*arrays, block_size=self.block_size)

    def parts(self, work):
        """Query, key and value of the pieces: strided views of one matrix."""
        qkv = torch.cat([self.qkv[0][:0], *(self.qkv[row][start:end] for row, start, end in work)])
        split = qkv.split([n * self.dim for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        return [part.unflatten(-1, (-1, self.dim)) for part in split]

    def write(self, kernels, cache, work):
        _, key, value = self.parts(work)
        kernels.write_kv(key, value, cache[:, LAYER], self.batch(work))

    def step(self, kernels, cache, work, window=None):
        """Writes the pieces' keys and values, then attends: `[tokens, heads, dim]`."""
        batch = self.batch(work)
        query, key, value = self.parts(work)
        kernels.write_kv(key, value, cache[:, LAYER], batch)
        out = torch.full(query.shape, float("nan"), dtype=self.dtype)
        kernels.attention(query, cache[:, LAYER], batch, self.dim**-0.5, out, window)
        return out

    def whole(self, row):
        return (row, 0, self.lengths[row])


@pytest.fixture
def contexts():
    return Contexts
