"""What happens where FlashInfer is there but its kernels do not run: Triton's take over."""

import types

import pytest
import torch

from octavo.kernels import build
from tests.kernels.cuda import twin

CPU = torch.device("cpu")
NINJA = (
    "Ninja build failed. Ninja output:\n[1/2] nvcc -c\npage.cu:7: fatal error: cuda.h: no such file"
)


def flashinfer(broken=None, error=None, at="plan"):
    """The twin, of which a call to one of its parts may fail; counts the plans of each."""
    package = types.SimpleNamespace(**vars(twin), plans=0)

    def fail(*_, **__):
        raise error

    if broken == "merge_state_in_place":
        package.merge_state_in_place = fail
    elif broken:
        setattr(package, broken, type(broken, (getattr(twin, broken),), {at: fail}))
    return package


@pytest.fixture
def case(cuda_kernels, reference, contexts):
    """Attention of a prefill and a decode row by kernels made with a package, and the right one."""
    rows = contexts([40, 9], 4, 2, 64, 16, torch.float16)
    cache = rows.empty_cache()
    rows.write(reference, cache, [rows.whole(0), rows.whole(1)])
    work = [(0, 39, 40), (1, 2, 9)]
    query, *_ = rows.parts(work)

    def attend(kernels):
        batch, out = rows.batch(work), torch.full_like(query, float("nan"))
        kernels.begin_step(batch)
        kernels.attention(query, cache[:, 1], batch, 0.125, out)
        return out

    return attend, attend(reference)


def kernels(package, required=False):
    from octavo.kernels.cuda.kernels import CudaKernels

    return CudaKernels(CPU, package, required)


@pytest.mark.parametrize(
    "broken, at",
    [
        ("BatchPrefillWithPagedKVCacheWrapper", "plan"),
        ("BatchDecodeWithPagedKVCacheWrapper", "plan"),
        ("BatchDecodeWithPagedKVCacheWrapper", "run"),
        ("merge_state_in_place", ""),
    ],
)
def test_whatever_does_not_compile_triton_attends(case, monkeypatch, caplog, broken, at):
    monkeypatch.setattr(build.log, "propagate", True)
    attend, right = case
    found = kernels(flashinfer(broken, RuntimeError(NINJA), at))
    for _ in range(2):
        torch.testing.assert_close(attend(found), right, atol=2e-3, rtol=2e-3)
    assert caplog.messages == [
        "flashinfer's kernels do not run here (page.cu:7: fatal error: cuda.h: no such file): "
        "attention runs on the slower Triton kernels; see that nvcc of the CUDA that torch is "
        "built for, a C++ compiler and ninja are there, or install flashinfer-jit-cache"
    ]


def test_what_runs_is_used_and_tried_out_once(case, monkeypatch, caplog):
    monkeypatch.setattr(build.log, "propagate", True)
    attend, right = case
    found = kernels(flashinfer())
    tried = []
    try_out = found._planner.try_out
    monkeypatch.setattr(found._planner, "try_out", lambda *a: (tried.append(a), try_out(*a)))
    for _ in range(2):
        torch.testing.assert_close(attend(found), right, atol=2e-3, rtol=2e-3)
    assert len(tried) == 1 and found._planner._prefill[True].plans == 3
    assert caplog.messages == []


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_a_trial_attends_for_every_kind_of_part(block_size):
    from octavo.kernels.cuda.plan import Planner, Shape

    package = flashinfer()
    merges = []
    package.merge_state_in_place = lambda *a: (merges.append(a), twin.merge_state_in_place(*a))
    planner = Planner(package, CPU)
    planner.try_out(Shape(4, 2, 64, torch.bfloat16, torch.bfloat16, 0.125), block_size)
    assert set(planner._prefill) == {False, True} and planner._decode.plans == 1
    assert len(merges) == 2


def test_one_that_was_asked_for_by_name_is_missed_in_a_sentence(case):
    attend, _ = case
    broken = flashinfer("BatchDecodeWithPagedKVCacheWrapper", FileNotFoundError("ninja"))
    with pytest.raises(RuntimeError, match=r"asked for, but flashinfer's .*\(ninja\); see that"):
        attend(kernels(broken, required=True))


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_gpu_that_is_full_or_lost_is_no_fault_of_flashinfers(case, kind):
    attend, _ = case
    with pytest.raises(kind):
        attend(kernels(flashinfer("BatchDecodeWithPagedKVCacheWrapper", kind("lost"))))
