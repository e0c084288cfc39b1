"""When blocks are gathered to cross between the tiers, and that they arrive either way."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.kernels.reference import ReferenceKernels
from octavo.workers.crossing import Crossing, Gathering
from octavo.workers.transfers import torch_copy
from tests.kernels.cuda.conftest import cuda_kernels  # noqa: F401

BLOCKS, HOST_BLOCKS, WIDTH = 64, 40, 24
ROOM = 10


@pytest.fixture(params=["reference", "triton"])
def kernels(request):
    if request.param == "reference":
        return ReferenceKernels()
    return request.getfixturevalue("cuda_kernels")


class Tiers:
    """Both directions over the same blocks; `copies` has the moves of each call."""

    def __init__(self, kernels, gathering):
        self.device = torch.randint(0, 255, (BLOCKS, WIDTH), dtype=torch.uint8)
        self.host = torch.randint(0, 255, (HOST_BLOCKS, WIDTH), dtype=torch.uint8)
        self.copies = []
        self.out, self.into = (
            Crossing(self.device, self.host, kernels, self.copy, inward, gathering)
            for inward in (False, True)
        )

    def copy(self, sources, targets, moves):
        self.copies.append(list(moves))
        torch_copy(sources, targets, self.copies[-1])


def scattered(count, first):
    """Blocks of the device in no order, and as many of the host from `first` on."""
    return list(zip(random.Random(0).sample(range(BLOCKS), count), range(first, first + count),
                    strict=True))  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("saving", [0, 4, 100])
def test_blocks_arrive_either_way(kernels, seed, saving):
    rng = random.Random(seed)
    tiers = Tiers(kernels, Gathering(saving=saving, room=ROOM * WIDTH))
    for _ in range(6):
        count = rng.randint(1, 30)
        first = rng.randrange(HOST_BLOCKS - count)
        host = rng.choice([range(first, first + count), rng.sample(range(HOST_BLOCKS), count)])
        device = rng.sample(range(BLOCKS), count)
        pairs = list(zip(device, host, strict=True))
        rng.shuffle(pairs)
        device_then, host_then = tiers.device.clone(), tiers.host.clone()
        for source, target in pairs:
            host_then[target] = device_then[source]
        tiers.out.carry(pairs)
        assert torch.equal(tiers.host, host_then)
        pairs = [(target, rng.choice(device)) for target, _ in zip(host, device, strict=True)]
        pairs = [*{target: (source, target) for source, target in pairs}.values()]
        for source, target in pairs:
            device_then[target] = host_then[source]
        tiers.into.carry(pairs)
        assert torch.equal(tiers.device, device_then) and torch.equal(tiers.host, host_then)


def test_scattered_blocks_cross_by_one_copy_a_lot():
    tiers = Tiers(ReferenceKernels(), Gathering(room=ROOM * WIDTH))
    pairs = scattered(24, 3)
    tiers.out.carry(pairs[::-1])
    assert tiers.copies == [[(0, 3, 10)], [(0, 13, 10)], [(0, 23, 4)]]
    tiers.copies.clear()
    tiers.into.carry([(host, device) for device, host in pairs])
    assert tiers.copies == [[(3, 0, 10)], [(13, 0, 10)], [(23, 0, 4)]]
    assert tiers.out.staging.shape == (ROOM, WIDTH)
    assert tiers.out.staging.data_ptr() != tiers.into.staging.data_ptr()


def test_blocks_that_a_gathering_would_not_serve_cross_as_they_lie():
    def calls(pairs, **changes):
        tiers = Tiers(ReferenceKernels(), Gathering(**{"room": ROOM * WIDTH} | changes))
        tiers.out.carry(pairs)
        return [len(moves) for moves in tiers.copies]

    assert calls(scattered(24, 0)) == [1, 1, 1]
    assert calls(scattered(16, 0)) == [16], "too few"
    assert calls(scattered(24, 0), below=WIDTH) == [24], "too large"
    assert calls([(b, b) for b in range(24)]) == [1], "all neighbours"
    assert calls([(b, b // 2 * 2 + 1 - b % 2) for b in range(24)]) == [1, 1, 1]
    far_apart = [(b, 2 * b % 39) for b in range(20)]
    assert calls(far_apart) == [20], "the host's are no neighbours"


def test_room_is_taken_for_small_blocks_alone():
    usual = Gathering()
    assert usual.bytes(2**17) == usual.bytes(2**20) == 0
    assert usual.bytes(2**16) == 2 * 8 * 2**20
    assert usual.bytes(10**5) == 2 * 83 * 10**5
    assert Gathering(below=10**9, room=5).bytes(10) == 20
    host = torch.empty(0, WIDTH, dtype=torch.uint8)
    assert len(Crossing(host, host, ReferenceKernels(), torch_copy, True, usual).staging) == 0
