"""Compiles every Triton kernel for a GPU that is not there, down to its machine code.

`python -m tests.kernels.cuda.compiled 90,128,bfloat16,bfloat16` calls all of `CudaKernels` on empty
tensors, with heads of 128, of that dtype and a cache of that dtype, for compute capability 9.0.
Instead of being launched, kernels are compiled, for the arguments that they would be launched with.
Prints each one's name and bytes of shared memory.
"""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from octavo.kernels.base import Batch, cache_shape
from octavo.kernels.cuda.kernels import CudaKernels

HEADS, KV_HEADS, BLOCK_SIZE, HIDDEN = 32, 8, 16, 4096


class Absent:
    """A driver for one GPU, whose number is its compute capability."""

    def __init__(self, capability):
        self._target = GPUTarget("cuda", capability, 32)
        self._capability = capability

    def get_current_target(self):
        return self._target

    def get_current_device(self):
        return self._capability

    def get_current_stream(self, device):
        return 0


def compile_instead():
    launch = JITFunction.run

    def run(function, *arguments, grid, warmup, **named):
        kernel = launch(function, *arguments, grid=grid, warmup=True, **named)
        assert "cubin" in kernel.asm
        print(function.fn.__name__, kernel.metadata.shared)
        return kernel

    JITFunction.run = run


def call_all(kernels, dtype, dim, kept):
    def zeros(*shape):
        return torch.zeros(shape, dtype=dtype)

    def array(*numbers):
        return torch.tensor(numbers, dtype=torch.int32)

    cache = torch.zeros(cache_shape(4, 2, KV_HEADS, BLOCK_SIZE, dim), dtype=kept)
    layer = cache[:, 1]
    qkv = zeros(6, HEADS + 2 * KV_HEADS, dim)
    query, key, value = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
    lengths, slots = array(3, 7), array(*[0] * 6)
    batch = Batch(array(0, 1, 6), array(0, 1, 2), array(1, 2), lengths, slots, BLOCK_SIZE)
    decode = Batch(array(0, 1, 2), array(0, 1, 2), array(1, 2), lengths, slots[:2], BLOCK_SIZE)
    kernels.write_kv(key, value, layer, batch)
    kernels.rotary_write_kv(
        query, key, value, torch.zeros(9, 2, dim // 2), array(*[0] * 6), layer, batch
    )
    kernels.attention(query, layer, batch, 0.1, zeros(6, HEADS, dim))
    kernels.attention(query[:2], layer, decode, 0.1, zeros(2, HEADS, dim))
    kernels.copy_blocks(cache, torch.tensor([[1, 2]]))
    kernels.gather_blocks(cache, torch.tensor([1]), cache[:1])
    kernels.scatter_blocks(cache[:1], torch.tensor([1]), cache)
    x, weight = zeros(6, HIDDEN), zeros(HIDDEN)
    kernels.rms_norm(x, weight, 1e-5, x)
    kernels.rms_norm(query, weight[:dim], 1e-5, query)
    kernels.add_rms_norm(x, zeros(6, HIDDEN), weight, 1e-5, x)
    kernels.silu_and_mul(x, zeros(6, HIDDEN // 2))
    packed = kernels.quantize(zeros(64, HIDDEN), form="int8" if kept is dtype else "fp8")
    for rows in (6, 64):
        kernels.linear(zeros(rows, HIDDEN), packed, weight[:64], zeros(rows, 64))


def main(*configurations):
    compile_instead()
    for configuration in configurations:
        capability, dim, *dtypes = configuration.split(",")
        driver.set_active(Absent(int(capability)))
        dtype, kept = (getattr(torch, name) for name in dtypes)
        call_all(CudaKernels(torch.device("cpu")), dtype, int(dim), kept)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[no-untyped-call]
