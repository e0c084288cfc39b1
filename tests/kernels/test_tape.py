"""Recorded kernel calls, played again on other content and another batch."""

import pytest
import torch

from octavo.kernels.cpu import CpuKernels
from octavo.kernels.reference import ReferenceKernels

HEADS, KV_HEADS, DIM, TOKENS, WIDTH = 4, 2, 16, 40, 96


class Calls:
    """One of each kernel on tensors that stay where they are, as a layer makes them."""

    def __init__(self, kernels, rows, dtype):
        self.kernels = kernels
        self.rows = rows
        self.cache = rows.empty_cache()
        self.weight = kernels.pack(self.random(WIDTH, HEADS * DIM, seed=1).to(dtype))
        gate_up = self.random(128, WIDTH, seed=5).to(dtype)
        self.gate_up = kernels.pack(gate_up, gated=True)
        self.down = kernels.pack(self.random(WIDTH, 64, seed=6).to(dtype))
        self.bias = self.random(WIDTH, seed=2).to(dtype)
        self.norm = self.random(WIDTH, seed=3).to(dtype)
        angles = torch.rand(100, DIM // 2, generator=torch.Generator().manual_seed(4))
        self.table = torch.stack((angles.cos(), angles.sin()), dim=1)
        self.positions = torch.zeros(TOKENS, dtype=torch.int32)
        shapes = {
            "query": (HEADS, DIM),
            "key": (KV_HEADS, DIM),
            "value": (KV_HEADS, DIM),
            "attended": (HEADS, DIM),
            "projected": (WIDTH,),
            "residual": (WIDTH,),
            "normed": (WIDTH,),
            "gated": (WIDTH // 2,),
            "wide": (128,),
            "half": (64,),
            "between": (64,),
            "fed": (WIDTH,),
        }
        for name, shape in shapes.items():
            setattr(self, name, torch.zeros(TOKENS, *shape, dtype=dtype))

    @staticmethod
    def random(*shape, seed):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def fill(self, work, seed):
        """Other inputs in the same places, and the batch of `work`."""
        for i, name in enumerate(("query", "key", "value", "residual")):
            tensor = getattr(self, name)
            tensor.copy_(self.random(*tensor.shape, seed=10 * seed + i))
        places = [p for _, start, end in work for p in range(start, end)]
        self.positions.copy_(torch.tensor(places, dtype=torch.int32))
        return self.rows.batch(work)

    def make(self, batch):
        kernels, layer = self.kernels, self.cache[:, 1]
        kernels.rotary_write_kv(
            self.query, self.key, self.value, self.table, self.positions, layer, batch
        )
        kernels.attention(self.query, layer, batch, DIM**-0.5, self.attended)
        kernels.linear(self.attended.flatten(1), self.weight, self.bias, self.projected)
        kernels.add_rms_norm(self.projected, self.residual, self.norm, 1e-5, self.normed)
        kernels.rms_norm(self.normed, self.norm, 1e-5, self.projected)
        kernels.silu_and_mul(self.projected, self.gated)
        kernels.gated_linear(self.normed, self.gate_up, None, self.wide, self.half)
        kernels.feed_forward(
            *(self.normed, self.gate_up, None, self.down, None),
            *(self.wide, self.between, self.fed),
        )


FIRST = [(0, 0, 30), (1, 0, 10)]
SECOND = [(1, 0, 13), (0, 0, 25), (2, 0, 2)]  # as many tokens, in other rows


@pytest.fixture
def opened(contexts):
    def open_one(kernels, dtype=torch.float32):
        rows = contexts([40, 30, 2], HEADS, KV_HEADS, DIM, 16, dtype)
        return Calls(kernels, rows, dtype)

    return open_one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_playing_does_what_calling_does(native_kernels, opened, dtype, threads):
    torch.set_num_threads(threads)
    taped, direct = opened(native_kernels, dtype), opened(native_kernels, dtype)
    for calls in (taped, direct):
        batch = calls.fill(FIRST, seed=1)
        if calls is taped:
            tape = native_kernels.record(lambda calls=calls, batch=batch: calls.make(batch))
        else:
            calls.make(batch)
    assert torch.equal(taped.gated, direct.gated)
    tape.play(taped.fill(SECOND, seed=2), taped.cache[:, 1])
    direct.make(direct.fill(SECOND, seed=2))
    assert torch.equal(taped.gated, direct.gated) and taped.gated.isfinite().all()
    assert torch.equal(taped.half, direct.half) and taped.half.isfinite().all()
    assert torch.equal(taped.fed, direct.fed) and taped.fed.isfinite().all()
    assert torch.equal(taped.cache.nan_to_num(7.0), direct.cache.nan_to_num(7.0))


def test_calls_after_a_recording_are_not_on_the_tape(best_kernels, opened):
    calls = opened(best_kernels)
    batch = calls.fill(FIRST, seed=1)
    tape = best_kernels.record(lambda: None)
    calls.make(batch)
    before = calls.gated.clone()
    calls.residual.add_(1)
    tape.play(batch, calls.cache[:, 1])
    assert torch.equal(calls.gated, before)


def test_products_that_are_left_to_torch_make_no_tape(best_kernels, opened):
    kernels = CpuKernels(best_kernels.library, {torch.float32: TOKENS - 1})
    calls = opened(kernels)
    batch = calls.fill(FIRST, seed=1)
    assert kernels.record(lambda: calls.make(batch)) is None
    assert calls.gated.abs().sum() > 0


def test_the_reference_makes_no_tape(opened):
    calls = opened(ReferenceKernels())
    batch = calls.fill(FIRST, seed=1)
    assert calls.kernels.record(lambda: calls.make(batch)) is None
    assert calls.gated.abs().sum() > 0


def test_a_failed_recording_leaves_the_kernels_as_they_were(best_kernels, opened):
    calls = opened(best_kernels)
    batch = calls.fill(FIRST, seed=1)
    calls.positions[0] = 1000
    with pytest.raises(IndexError, match="rotary table"):
        best_kernels.record(lambda: calls.make(batch))
    calls.positions[0] = 0
    tape = best_kernels.record(lambda: calls.make(batch))
    calls.positions[0] = 1000
    with pytest.raises(IndexError, match="rotary table"):
        tape.play(batch, calls.cache[:, 1])
