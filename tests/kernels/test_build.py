"""Compiling and caching the library, and living without a compiler."""

import os
import shlex
import stat
import subprocess
import sys

import pytest
import torch

from octavo.kernels import build
from octavo.kernels.cpu import CpuKernels
from octavo.kernels.select import select

CPU = torch.device("cpu")
# The real compiler takes seconds; what surrounds it is tested with a script in its place.
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo fake 1.0; exit 0; fi
echo run >> "$FAKE_LOG"
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """A compiler that logs its runs; returns their count."""
    script, runs = tmp_path / "fake-c++", tmp_path / "runs"
    script.write_text(FAKE)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("FAKE_LOG", str(runs))
    return lambda: len(runs.read_text().splitlines()) if runs.exists() else 0


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")


def test_compiles_once(cache, fake_compiler):
    first = build.library()
    assert first is not None and first.parent == cache and fake_compiler() == 1
    assert build.library() == first and fake_compiler() == 1


def test_the_name_tells_processors_and_compilers_apart(cache, fake_compiler, tmp_path, monkeypatch):
    names = {build.library(capability) for capability in (*build.VECTOR_FLAGS, "portable")}
    other = tmp_path / "other-c++"
    other.write_text(FAKE.replace("fake 1.0", "fake 2.0"))
    other.chmod(0o700)
    monkeypatch.setenv("CXX", str(other))
    names.add(build.library("AVX2"))
    assert len(names) == 6 and None not in names and fake_compiler() == 6


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Has torch and Linux say what processor this is."""

    def pretend(capability, flags):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        (tmp_path / "cpuinfo").write_text(
            f"model name\t: a processor\nflags\t\t: fpu {flags} sse\n"
        )
        monkeypatch.setattr(build, "CPUINFO", tmp_path / "cpuinfo")

    return pretend


def test_capability(machine, monkeypatch, tmp_path):
    machine("AVX512", "avx512_bf16 avx512f")
    assert build.processor() == "AVX512_BF16"
    machine("AVX2", "avx512_bf16")  # torch may be told to keep to less
    assert build.processor() == "AVX2"
    machine("AVX512", "avx512_bf1 xavx512_bf16 amx_tile")
    assert build.processor() == "AVX512"
    machine("AVX512", "avx512_bf16 amx_bf16")
    assert build.processor() == "AMX"
    machine("AVX2", "amx_bf16")
    assert build.processor() == "AVX2"
    machine("AVX512", "amx_bf16")  # no processor has it without the other
    assert build.processor() == "AVX512"
    monkeypatch.setattr(build, "CPUINFO", tmp_path / "missing")
    assert build.processor() == "AVX512"


def test_a_compiler_older_than_the_processor(cache, fake_compiler, machine, tmp_path, caplog):
    script = tmp_path / "fake-c++"
    refusal = 'case "$*" in *bf16*) echo "unrecognized option" >&2; exit 1;; esac\n'
    script.write_text(FAKE.replace("echo run", refusal + "echo run"))
    for flags in ("avx512_bf16", "avx512_bf16 amx_bf16"):
        machine("AVX512", flags)
        assert build.library() == build.library("AVX512") is not None
    assert warnings_of(caplog) == [] and fake_compiler() == 1
    assert build.library("AVX512_BF16") is None and build.library("AMX") is None


def test_a_library_of_a_lesser_processor_serves(cache, fake_compiler, machine, monkeypatch):
    built = build.library("AVX512")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    machine("AVX512", "avx512_bf16")
    assert build.library() == built
    machine("AVX2", "")
    assert build.library() is None, "one that this processor cannot run was found"


def test_the_name_changes_with_the_sources(cache, fake_compiler, tmp_path, monkeypatch):
    before = build.library()
    sources = tmp_path / "csrc"
    sources.mkdir()
    for file in build.SOURCES.iterdir():
        (sources / file.name).write_bytes(file.read_bytes() + b"// changed\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.library() not in (before, None)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_folder() == tmp_path / ".cache" / "octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache_folder() == tmp_path / "xdg" / "octavo"
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "own"))
    assert build.cache_folder() == tmp_path / "own"


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "octavo.kernels"]


def test_without_a_compiler_torch_serves(cache, no_compiler, caplog):
    assert select(CPU).name == "torch"
    (message,) = warnings_of(caplog)
    assert "no C++ compiler" in message and "install g++" in message
    with pytest.raises(RuntimeError, match="could not be built"):
        select(CPU, "native")


def test_without_a_compiler_an_earlier_library_serves(cache, fake_compiler, monkeypatch, caplog):
    built = build.library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert build.library() == built and warnings_of(caplog) == []


def test_a_failing_compiler(cache, tmp_path, monkeypatch, caplog):
    script = tmp_path / "broken"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no such header" >&2; exit 1; }\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    assert select(CPU).name == "torch"
    (message,) = warnings_of(caplog)
    assert "no such header" in message and "CXX" in message
    assert not list(cache.glob("*.so"))


def test_a_cache_folder_that_cannot_be_made(tmp_path, fake_compiler, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    assert select(CPU).name == "torch"
    (message,) = warnings_of(caplog)
    assert "OCTAVO_CACHE" in message


def test_a_library_that_does_not_load(cache, fake_compiler, caplog):
    assert select(CPU).name == "torch"  # the fake compiler's output is no library
    (message,) = warnings_of(caplog)
    assert "do not load" in message


def test_two_processes_at_once(cache, tmp_path, monkeypatch):
    """By the real compiler, which takes a third of the time where it need not optimize."""
    script = tmp_path / "hasty"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(build._compiler())} "$@" -O0\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    program = (
        "import torch; from octavo.kernels.select import select;"
        "k = select(torch.device('cpu'), 'native'); x = torch.ones(2, 8); o = torch.empty(2, 8);"
        "k.rms_norm(x, torch.ones(8), 0.0, o); assert torch.equal(o, x)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=os.environ.copy()) for _ in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert len(list(cache.glob("*.so"))) == 1
    assert not [path for path in cache.iterdir() if path.is_dir()], "a work folder was left"


def test_selecting(monkeypatch):
    assert isinstance(select(CPU), CpuKernels)
    assert [select(CPU, n).name for n in ("torch", "reference")] == ["torch", "reference"]
    monkeypatch.setenv("OCTAVO_KERNELS", "reference")
    assert select(CPU).name == "reference"
    assert select(CPU, "torch").name == "torch"
    with pytest.raises(ValueError, match="'fast' are not known: choose one of auto, native"):
        select(CPU, "fast")
    monkeypatch.delenv("OCTAVO_KERNELS")
    with pytest.raises(ValueError, match=r"octavo\[cuda\]"):
        select(torch.device("cuda"))
