"""Which kernels a GPU gets, and what is said where something is missing."""

import ast
from pathlib import Path

import pytest
import torch

from octavo.kernels import build, select

GPU = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A machine that seems to have one, with triton; `installed(...)` says what else is there."""
    packages = {"triton"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(select, "find_spec", lambda name: name if name in packages else None)
    monkeypatch.setattr(select, "which", lambda name: name if name in packages else None)
    monkeypatch.setattr(select, "TOOLKIT", select.TOOLKIT / "absent")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("OCTAVO_KERNELS", raising=False)
    return packages


@pytest.mark.parametrize(
    "there, missing",
    [
        ({}, "flashinfer is not installed (install octavo[cuda])"),
        ({"flashinfer"}, "flashinfer needs nvcc to compile its kernels, and there is none "
         "(install the CUDA toolkit, or flashinfer-jit-cache)"),
        ({"flashinfer", "nvcc"}, None),
        ({"flashinfer", "flashinfer_jit_cache"}, None),
    ],
)  # fmt: skip
def test_what_flashinfer_lacks(gpu, there, missing):
    gpu.update(there)
    assert select.missing_for_flashinfer() == missing


def test_without_flashinfer_triton_attends(gpu, monkeypatch, caplog):
    pytest.importorskip("triton")
    monkeypatch.setattr(build.log, "propagate", True)
    assert select.select(GPU).name == "cuda"
    assert caplog.messages == [
        "flashinfer is not installed (install octavo[cuda]): attention runs on the slower Triton "
        "kernels"
    ]
    caplog.clear()
    assert select.select(GPU, "triton").name == "cuda"
    assert select.select(GPU, "reference").name == "reference"
    assert caplog.messages == []
    with pytest.raises(RuntimeError, match="asked for, but flashinfer is not installed"):
        select.select(GPU, "native")


def test_a_flashinfer_that_does_not_load(gpu, monkeypatch, caplog):
    def fail(name):
        raise ImportError(f"{name}: libcuda.so.1 is missing")

    pytest.importorskip("triton")
    gpu.update({"flashinfer", "nvcc"})
    monkeypatch.setattr(select, "import_module", fail)
    monkeypatch.setattr(build.log, "propagate", True)
    assert select.select(GPU).name == "cuda"
    assert caplog.messages == [
        "flashinfer does not load (flashinfer: libcuda.so.1 is missing): attention runs on the "
        "slower Triton kernels"
    ]


def test_without_triton_there_are_none(gpu):
    gpu.clear()
    with pytest.raises(ValueError, match=r"triton.*is not installed; install octavo\[cuda\]"):
        select.select(GPU)


def test_a_cpu_has_no_triton():
    with pytest.raises(ValueError, match="'triton' are for --device cuda"):
        select.select(torch.device("cpu"), "triton")


def test_nothing_of_a_gpu_is_imported_for_a_cpu():
    """At the top of a module, that is: what only a GPU has is imported where there is one."""
    folder = Path(select.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                module = node.module if isinstance(node, ast.ImportFrom) else ""
                for name in (module or "", *names):
                    assert not name.startswith(("triton", "flashinfer", "octavo.kernels.cuda"))
