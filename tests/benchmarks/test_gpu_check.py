"""The check of a machine with a GPU, run where there is none: so it works on the day of one."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.report import CannotRun
from octavo.kernels.reference import ReferenceKernels
from octavo.workers.copy_stream import CopyStream
from octavo.workers.transfers import torch_copy
from tests.workers.fake_cuda import FakeCuda

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("ranks", "triton")  # processes of their own, and what only a GPU has


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models are made once."""
    return tmp_path_factory.mktemp("gpu_check")


def options(**changes):
    given = {"device": "cpu", "dtype": "float32", "kernels": "auto", "tiny": True}
    return argparse.Namespace(**given | changes)


@pytest.mark.parametrize("part", [part for part in gpu_check.PARTS if part not in LEFT_OUT])
def test_every_part_passes_on_the_cpu(folder, part):
    found = gpu_check.run_part(part, options(), folder)
    assert found["failures"] == [] and found["status"] == "passed", found
    assert found["passed"] or found["figures"]
    json.dumps(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_parts_say_that_they_cannot_run(folder):
    found = gpu_check.run_part("engine", options(device="cuda"), folder)
    assert (found["status"], found["reason"]) == ("could not run", "torch finds no GPU")


@pytest.mark.parametrize(
    "error, status, reason",
    [
        (CannotRun("2 ranks need 2 GPUs"), "could not run", "2 ranks need 2 GPUs"),
        (ModuleNotFoundError("no", name="zz"), "could not run", "the package zz is not installed"),
        (RuntimeError("CUDA error: lost\nmore"), "failed", "RuntimeError: CUDA error: lost"),
    ],
)
def test_what_goes_wrong_is_named(folder, monkeypatch, error, status, reason):
    def fail(setting, report):
        raise error

    monkeypatch.setitem(gpu_check.PARTS, "engine", (fail, 1))
    found = gpu_check.run_part("engine", options(), folder)
    assert (found["status"], found["reason"]) == (status, reason)


def test_a_wrong_kernel_is_found(folder, monkeypatch):
    from benchmarks.gpu_check import kernels as checked

    class Wrong(ReferenceKernels):
        def attention(self, query, cache, batch, scale, out, window=None):
            super().attention(query, cache, batch, scale * 1.1, out, window)

        def copy_blocks(self, cache, pairs):
            raise RuntimeError("no copy engine")

    monkeypatch.setattr(checked, "select", lambda device, name: Wrong())
    found = gpu_check.run_part("kernels", options(), folder)
    assert found["status"] == "failed"
    failures = " ".join(found["failures"])
    assert "decode attention" in failures and "blocks: RuntimeError: no copy engine" in failures
    assert "rms_norm" not in failures


def test_only_what_is_wrong_is_named(folder, monkeypatch):
    from benchmarks.gpu_check import kernels as checked

    class Wrong(ReferenceKernels):
        def attention(self, query, cache, batch, scale, out, window=None):
            super().attention(query, cache, batch, scale, out)

        def write_kv(self, key, value, cache, batch):
            super().write_kv(key / 2 if cache.dtype.itemsize == 1 else key, value, cache, batch)

    monkeypatch.setattr(checked, "select", lambda device, name: Wrong())
    failures = gpu_check.run_part("kernels", options(), folder)["failures"]
    assert any(", 24 tokens far" in failure for failure in failures)
    assert any("what an FP8 cache holds" in failure for failure in failures)
    assert all(", 24 tokens far" in failure or "FP8 cache" in failure for failure in failures)


class AtOnce:
    """A GPU's streams that do what they are given as soon as they are given it."""

    def make(self):
        return self

    current = event = make

    def on(self, stream):
        return nullcontext()

    def wait_stream(self, stream):
        pass

    wait_event = wait_stream

    def record(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, end):
        return 1.0


def test_on_a_gpu_every_way_to_copy_is_measured(folder, monkeypatch):
    from benchmarks.gpu_check import swaps

    made = []

    def tiers_of(setting, cache, host, kernels, gathering=None, together=True):
        made.append(gathering)
        kernels = ReferenceKernels()
        return CopyStream(cache, host, kernels, AtOnce(), torch_copy, gathering)

    monkeypatch.setattr(swaps, "has_streams", lambda setting: True)
    monkeypatch.setattr(swaps, "tiers_of", tiers_of)
    fences = gpu_check.run_part("fences", options(), folder)
    assert (fences["status"], fences["passed"]) == ("passed", 4)
    assert made == [swaps.AS_THEY_LIE, swaps.GATHERED]
    found = gpu_check.run_part("copies", options(), folder)
    assert found["status"] == "passed", found
    figures = found["figures"]
    assert set(figures["16 blocks of 64 KiB in, neighbours on the host"]) == {
        "GB/s gathered", "GB/s as they lie", "GB/s as a worker does"}  # fmt: skip
    assert "GB/s, a call for each" in figures["blocks of 64 KiB out"]
    assert figures["blocks of 64 KiB, both ways at once"]["GB/s one after the other"] > 0


def test_gaps_are_measured_by_events(folder, monkeypatch):
    from benchmarks.gpu_check.engine import Case
    from benchmarks.gpu_check.setting import Setting
    from benchmarks.gpu_check.speed import Engine, measure_gaps

    fake = FakeCuda()
    fake.patch(monkeypatch)
    setting = Setting(torch.device("cpu"), "float32", "auto", folder, True)
    engine = Engine(Case(setting).config(), enable_prefix_caching=False)
    engine.worker.runs_ahead = True
    found = measure_gaps(engine, [1, 3], steps=6)
    assert list(found) == ["1 sequences", "3 sequences"]
    for figures in found.values():  # time goes by in calls: begin, end, nothing between
        assert 0 <= figures["share of the step"] < 1 and figures["ms a step"] > 0
    assert not engine.scheduler.live_requests
    on_gpu = Setting(torch.device("cuda"), "float32", "auto", folder, True)
    assert on_gpu.seconds(lambda: fake.said.append("work")) == pytest.approx(3e-3 / 2)


def test_the_script_names_what_failed_and_keeps_what_was_found(tmp_path):
    out = tmp_path / "found.json"
    command = [str(ROOT / "scripts" / "gpu_check.sh"), "--device", "cpu", "--dtype", "float32"]
    command += ["--tiny", "--parts", "fences", "--out", str(out)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not run: nothing; failed: nothing" in done.stdout
    found = json.loads(out.read_text())
    assert {part: each["status"] for part, each in found.items()} == {"fences": "passed"}


def test_it_needs_no_more_than_a_bare_machine_has():
    """Torch, what comes with it, and msgspec; of what serves, nothing."""
    names = [path.stem for path in (ROOT / "benchmarks" / "gpu_check").glob("*.py")]
    code = "import importlib, sys\n"
    code += f"for name in {names}: importlib.import_module('benchmarks.gpu_check.' + name)\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    others = {
        "ray",
        "zmq",
        "transformers",
        "tokenizers",
        "llguidance",
        "pydantic",
        "fastapi",
        "uvicorn",
    }
    assert others & set(done.stdout.split()) == set()


def test_an_interpreter_without_torch_is_one_sentence(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    script = str(ROOT / "scripts" / "gpu_check.sh")
    for python, words in ((str(fake), "has no torch"), ("/no/python", "there is no '/no/python'")):
        done = subprocess.run(
            [script],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHON": python, "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 2 and words in done.stdout
