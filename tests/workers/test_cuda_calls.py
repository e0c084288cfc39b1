"""The few places that speak to CUDA, against a torch.cuda that writes down what it hears."""

from __future__ import annotations

import ctypes
import inspect
from datetime import timedelta

import pytest
import torch

from octavo.workers import parallel, transfers
from octavo.workers.copy_stream import CudaStreams
from octavo.workers.gpu_memory import CudaMeter
from octavo.workers.graphs import WARM_UPS, CudaCapture
from octavo.workers.parallel import Group
from octavo.workers.upload import StreamMark, mark
from tests.workers.fake_cuda import FakeCuda

GPU = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    fake.patch(monkeypatch)
    return fake


def test_calls_are_warmed_up_beside_and_then_recorded(cuda):
    capture = CudaCapture(GPU)

    def run():
        cuda.said.append(("run", cuda.current))
        return torch.ones(2)

    recording = capture(run)
    assert cuda.said == [
        ("side", "waits for", "main"),
        *[("run", "side")] * WARM_UPS,
        ("main", "waits for", "side"),
        "synchronize",
        ("capture", "pool", "thread_local"),
        ("run", "main"),
        "captured",
    ]
    assert recording.hidden.tolist() == [1, 1]
    recording.replay()
    assert cuda.said[-1] == "replay"


def test_torch_takes_what_it_is_given_here():
    """The fake one takes anything of the right name."""
    for name, given, options in (
        ("graph", [None], {"pool": None, "capture_error_mode": "thread_local"}),
        ("graph_pool_handle", [], {}),
        ("stream", [None], {}),
        ("current_stream", [GPU], {}),
        ("synchronize", [GPU], {}),
        ("mem_get_info", [GPU], {}),
        ("memory_reserved", [GPU], {}),
        ("max_memory_allocated", [GPU], {}),
        ("reset_peak_memory_stats", [GPU], {}),
    ):
        inspect.signature(getattr(torch.cuda, name)).bind(*given, **options)
    options = {"timeout": None, "device_id": GPU}
    inspect.signature(torch.distributed.init_process_group).bind("nccl", **options)


def test_a_mark_is_an_event_that_is_waited_for_without_spinning(cuda):
    here = mark(GPU)
    assert isinstance(here, StreamMark)
    assert here._event.options == {"blocking": True}
    assert here.done()
    here.wait()
    assert cuda.said == [("record", "main"), "wait for event"]


def test_streams_and_timed_events_are_torchs(cuda):
    streams = CudaStreams(GPU)
    side = streams.make()
    assert streams.current().name == "main"
    event = streams.event()
    assert event.options == {"enable_timing": True}
    with streams.on(side):
        event.record()
    assert cuda.said == [("record", "side")]


def test_the_meter_reads_what_torch_says(cuda):
    meter = CudaMeter(GPU)
    meter.settle()
    meter.forget_peak()
    assert cuda.said == ["synchronize", "empty_cache", "reset_peak"]
    assert (meter.allocated(), meter.peak(), meter.reserved()) == (5, 9, 7)
    assert meter.free_and_total() == (40, 100)


class Runtime:
    """Of CUDA's library, what copies; addresses are of this process. `code` is what single copies
    answer, `together` what the call for many does; without it there is no such call."""

    def __init__(self, code=0, together=None):
        self.said = []

        def memcpy(target, source, size, direction, stream):
            assert (direction, stream) == (4, 77)
            self.said.append("one")
            ctypes.memmove(target, source, size)
            return code

        def batch(targets, sources, sizes, count, attributes, first, kinds, stream):
            assert (kinds, stream) == (1, 77)
            assert ctypes.c_size_t.from_address(first).value == 0
            assert list((ctypes.c_uint * 6).from_address(attributes)) == [1, 0, 0, 0, 0, 0]
            self.said.append(count)
            array = ctypes.c_size_t * count
            if not together:
                for pair in zip(*(array.from_address(x) for x in (targets, sources, sizes)),
                                strict=True):  # fmt: skip
                    ctypes.memmove(*pair)
            return together

        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        one = ctypes.CFUNCTYPE(number, pointer, pointer, size, number, pointer)
        self.cudaMemcpyAsync = one(memcpy)
        if together is not None:
            three = pointer, pointer, pointer
            many = ctypes.CFUNCTYPE(number, *three, size, pointer, pointer, size, pointer)
            self.cudaMemcpyBatchAsync = many(batch)

    def cudaGetLastError(self):
        self.said.append("cleared")


MOVES = [(0, 3, 2), (5, 8, 1), (2, 0, 1)]


def copied(copy, moves):
    """Whether these moves do what torch's do."""
    sources = torch.randint(1, 255, (6, 40), dtype=torch.uint8)
    targets, expected = torch.zeros(2, 9, 40, dtype=torch.uint8)
    copy(sources, targets, moves)
    transfers.torch_copy(sources, expected, moves)
    return bool(expected.any()) and torch.equal(targets, expected)


def test_copies_are_asked_for_in_the_current_stream(cuda, monkeypatch):
    monkeypatch.setattr(transfers, "_runtime", Runtime)
    assert copied(transfers.cuda_copy(), MOVES)
    monkeypatch.setattr(transfers, "_runtime", lambda: Runtime(700))
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        copied(transfers.cuda_copy(), MOVES)


@pytest.mark.parametrize(
    "version, batched, said",
    [
        ("13.0", True, [3, "one"]),
        ("13.0", False, ["one"] * 4),
        ("12.9", True, ["one"] * 4),  # whose call for many has an argument more
    ],
)
def test_many_copies_are_one_call_where_there_is_one(cuda, monkeypatch, version, batched, said):
    library = Runtime(together=0)
    monkeypatch.setattr(transfers, "_runtime", lambda: library)
    monkeypatch.setattr(torch.version, "cuda", version)
    copy = transfers.cuda_copy(batched)
    assert copied(copy, MOVES) and copied(copy, MOVES[1:2])
    assert library.said == said
    assert ("many in one call" in transfers.how_copied()) == (version == "13.0")


def test_a_driver_that_lacks_the_call_for_many_is_asked_once(cuda, monkeypatch, caplog):
    library = Runtime(together=801)
    monkeypatch.setattr(transfers, "_runtime", lambda: library)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    copy = transfers.cuda_copy()
    with caplog.at_level("WARNING", "octavo.workers"):
        assert copied(copy, MOVES) and copied(copy, MOVES)
    assert library.said == [3, "cleared"] + ["one"] * 6
    assert caplog.messages == ["CUDA refuses copies in one call (error 801): they are made singly"]


@pytest.mark.parametrize(
    "version, name", [("13.0", "libcudart.so.13"), ("12.8", "libcudart.so.12")]
)
def test_the_runtime_is_the_one_of_torchs_version(monkeypatch, version, name):
    asked = []

    def load(library):
        asked.append(library)
        raise OSError("not found")

    monkeypatch.setattr(transfers.ctypes, "CDLL", load)
    monkeypatch.setattr(torch.version, "cuda", version)
    assert transfers.cuda_copy() is transfers.torch_copy
    monkeypatch.setattr(torch.version, "cuda", None)
    assert transfers.cuda_copy() is transfers.torch_copy and transfers.how_copied() == "torch"
    assert asked == [name]


def test_ranks_on_gpus_meet_over_nccl_and_connect_at_once(cuda, monkeypatch):
    met = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    ones = torch.ones
    monkeypatch.setattr(
        parallel.torch, "ones", lambda size, device: (met.update(on=device), ones(size))[1]
    )
    monkeypatch.setattr(
        parallel.dist, "init_process_group", lambda backend, **how: met.update(how, backend=backend)
    )
    monkeypatch.setattr(parallel.dist, "all_reduce", lambda tensor: cuda.said.append("all_reduce"))
    group = Group.join("tcp://10.0.0.5:29500", 1, 4, "cuda", timeout_seconds=7)
    assert (group.rank, group.size) == (1, 4)
    assert met == {
        "backend": "nccl",
        "init_method": "tcp://10.0.0.5:29500",
        "rank": 1,
        "world_size": 4,
        "timeout": timedelta(seconds=7),
        "device_id": GPU,
        "on": GPU,
    }
    assert cuda.said == ["all_reduce", "synchronize"]
