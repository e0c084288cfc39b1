"""Where a worker computes, and what its constructor refuses before a weight is read."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.errors import InvalidRequest
from octavo.workers import place as placing
from octavo.workers.config import WorkerConfig
from octavo.workers.parallel import Group
from octavo.workers.place import place
from octavo.workers.worker import Worker
from tests.tiny import CONTEXT


@pytest.fixture
def make(tiny_model):
    def make(group=None, **settings):
        config = WorkerConfig(str(tiny_model("llama")), **settings)
        return Worker(config) if group is None else Worker(config, group)

    return make


def test_lengths_and_types_follow_the_checkpoint(make):
    worker = make(device="cpu")
    assert (worker.max_model_len, worker.dtype) == (CONTEXT, torch.float32)
    assert worker.model_config.eos_token_ids == (2,)
    assert worker.device.type == "cpu"
    worker = make(device="cpu", max_model_len=100, dtype="bfloat16")
    assert (worker.max_model_len, worker.dtype) == (100, torch.bfloat16)
    with pytest.raises(InvalidRequest, match=f"more than the {CONTEXT} tokens"):
        make(max_model_len=CONTEXT + 1)


def test_kernels_can_be_chosen_by_name(make):
    assert make(kernels="reference").kernels.name == "reference"
    with pytest.raises(InvalidRequest, match="'fast'.*reference") as error:
        make(kernels="fast")
    assert error.value.param == "kernels"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(make):
    with pytest.raises(InvalidRequest, match="no GPU; use --device cpu") as error:
        make(device="cuda")
    assert error.value.param == "device"


def test_a_degree_that_divides_nothing_is_refused(make):
    with pytest.raises(InvalidRequest, match="use one of 1, 2, 4, 8"):
        make(Group(0, 3))


def test_auto_is_the_gpu_where_there_are_kernels_for_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)

    def select(device, name):
        if name == "none":
            raise ValueError("there are none")
        return name

    monkeypatch.setattr(placing, "select", select)
    assert place("auto", "some") == (torch.device("cuda", 3), "some")
    assert place("cuda", "some") == (torch.device("cuda", 3), "some")
    assert place("cpu", "some") == (torch.device("cpu"), "some")
    with pytest.raises(InvalidRequest, match="there are none"):
        place("cuda", "none")
