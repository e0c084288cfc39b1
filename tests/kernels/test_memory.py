"""The hint for huge pages."""

import re
import sys
from pathlib import Path

import pytest
import torch

from octavo.kernels.memory import prefer_huge_pages


def is_advised(address):
    """Whether the mapping that holds `address` carries the flag `hg`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no mapping holds the address")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the hint")
def test_large_tensors_are_advised():
    cache = torch.empty(16 << 20, dtype=torch.float32)
    middle = cache.data_ptr() + cache.nbytes // 2
    assert not is_advised(middle)
    if not prefer_huge_pages(cache):
        pytest.skip("this kernel is built without huge pages")
    assert is_advised(middle)
    cache.fill_(3)
    assert cache[-1] == 3


def test_other_tensors_are_left_alone():
    assert not prefer_huge_pages(torch.empty(4))
    assert not prefer_huge_pages(torch.empty(4 << 20, device="meta"))
