"""How much memory the host tier takes."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import WorkerConfig
from octavo.workers.host import GIB, host_blocks, host_bytes
from octavo.workers.worker import Worker

CPU = torch.device("cpu")


def test_what_is_asked_for_is_given_to_each_rank():
    assert host_bytes(1.5, "cpu", 4 * GIB, 2) == 1.5 * GIB
    assert host_bytes(0, "cuda", GIB, 1) == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_more_than_there_is_is_refused(device):
    with pytest.raises(InvalidRequest) as error:
        host_bytes(2.5, device, 9 * GIB, 4)
    assert error.value.param == "swap_space"
    assert error.value.message == (
        "swap_space 2.5 GiB for each of 4 ranks is more than the 9.00 GiB of memory that this "
        "machine has available; set --swap-space to 2 or less"
    )
    with pytest.raises(InvalidRequest, match="swap_space 10 GiB is more than the 9.00 GiB"):
        host_bytes(10, device, 9 * GIB, 1)


def test_unasked_the_cpu_takes_little():
    assert host_bytes(None, "cpu", 10 * GIB, 1) == GIB
    assert host_bytes(None, "cpu", 10 * GIB, 4) == GIB // 4
    assert host_bytes(None, "cpu", 1000 * GIB, 1) == 4 * GIB
    assert host_bytes(None, "cpu", 1000 * GIB, 4) == GIB


def test_unasked_each_gpu_takes_4_gib_if_the_machine_has_them():
    assert host_bytes(None, "cuda", 100 * GIB, 8) == 4 * GIB
    assert host_bytes(None, "cuda", 16 * GIB, 8) == GIB


def test_memory_is_taken_when_it_is_written():
    resident = psutil.Process().memory_info().rss
    blocks = host_blocks(2**20, 1024, CPU)  # 1 GiB
    assert (blocks.shape, blocks.dtype) == ((2**20, 1024), torch.uint8)
    blocks[7] = 1
    assert not blocks[8].any()
    assert psutil.Process().memory_info().rss - resident < GIB // 4
    assert host_blocks(0, 1024, CPU).shape == (0, 1024)


def test_a_worker_says_how_many_blocks_it_has(tiny_model):
    def capacity(swap_space):
        worker = Worker(WorkerConfig(str(tiny_model("llama")), swap_space=swap_space))
        worker.load()
        return worker.allocate(8)

    block = 2 * 2 * 4 * 16 * 16 * 4
    assert capacity(0) == Capacity(8, 16, 0, block)
    assert capacity(0.01) == Capacity(8, 16, int(0.01 * GIB) // block, block)
    assert 0 < capacity(None).num_host_blocks <= 4 * GIB // block
    with pytest.raises(InvalidRequest, match="swap_space 1e[+]06 GiB is more than"):
        capacity(1e6)


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan"), float("inf")])
def test_a_swap_space_that_is_no_size_is_refused(wrong):
    with pytest.raises(InvalidRequest, match=f"0 or more, got {wrong}") as error:
        WorkerConfig("model", swap_space=wrong)
    assert error.value.param == "swap_space"


class Registrar:
    """Of CUDA's runtime, what pins memory; `code` is what it answers."""

    def __init__(self, code=0):
        self.code = code
        self.pinned = {}

    def cudaHostRegister(self, address, size, flags):
        self.pinned[address] = size
        return self.code

    def cudaHostUnregister(self, address):
        del self.pinned[address]
        return 0


def test_beside_a_gpu_the_whole_tier_is_pinned_once_for_as_long_as_it_lives():
    registrar = Registrar()
    blocks = host_blocks(5, 1000, torch.device("cuda"), registrar)
    assert registrar.pinned == {blocks.data_ptr(): 5000}
    part = blocks[2:3]
    del blocks
    assert len(registrar.pinned) == 1
    del part
    assert registrar.pinned == {}
    host_blocks(0, 1000, torch.device("cuda"), registrar)
    assert registrar.pinned == {}


def test_memory_that_cannot_be_pinned_is_one_sentence():
    with pytest.raises(InvalidRequest) as caught:
        host_blocks(3, GIB // 2, torch.device("cuda"), Registrar(code=2))
    assert caught.value.param == "swap_space"
    assert caught.value.message == (
        "the system does not let 1.50 GiB of host memory be pinned for the GPU (CUDA error 2); "
        "lower --swap-space, or raise the limit of locked memory (ulimit -l)"
    )
