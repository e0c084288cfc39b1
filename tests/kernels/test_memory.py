"""Hints for huge pages, and for pages before they are needed."""

import re
import sys
from pathlib import Path

import pytest
import torch

from octavo.kernels.memory import mapped_zeros, prefer_huge_pages, write_pages_soon


def flags_of(address):
    """What Linux says of the mapping that holds `address`: `hg` where huge pages are advised, `sh`
    where it is shared."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no mapping holds the address")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the hint")
def test_large_tensors_are_advised():
    cache = torch.empty(16 << 20, dtype=torch.float32)
    middle = cache.data_ptr() + cache.nbytes // 2
    assert "hg" not in flags_of(middle)
    if not prefer_huge_pages(cache):
        pytest.skip("this kernel is built without huge pages")
    assert "hg" in flags_of(middle)
    cache.fill_(3)
    assert cache[-1] == 3


def test_other_tensors_are_left_alone():
    assert not prefer_huge_pages(torch.empty(4))
    assert not prefer_huge_pages(torch.empty(4 << 20, device="meta"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_mapped_memory_is_private_as_shared_memory_gets_no_huge_pages():
    memory = mapped_zeros(5 << 20)
    assert memory.shape == (5 << 20,) and not memory.any()
    assert "sh" not in flags_of(memory.data_ptr() + (4 << 20))


def test_no_memory_is_mapped_too():
    assert mapped_zeros(0).shape == (0,)


def resident(memory):
    """Bytes of a mapping for which there is memory."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= memory.data_ptr() < int(bounds[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no mapping holds the address")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the hint")
@pytest.mark.parametrize("size", [0, 1, (40 << 20) + 5])
def test_pages_are_there_before_they_are_written(size):
    memory = mapped_zeros(100 << 20)
    write_pages_soon(memory, size).join()
    given = resident(memory)
    if size and not given:
        pytest.skip("this kernel gives no pages ahead")
    assert size <= given < size + (4 << 20)
    assert not memory[: size + 1].any()
