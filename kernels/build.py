"""Compiles `csrc/` once a machine and caches the library; knows nothing of what is in it.

A library's name holds a hash of the sources, the flags and the processor's vector extensions, and
one of the compiler, so a cache folder may be shared between unlike machines and nothing stale is
ever loaded. Without a compiler, one that was built earlier (say, into an image) still serves.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).resolve().parent / "csrc"
FLAGS = ["-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wno-psabi"]
# Neither changes a result: no kernel reads errno or the floating-point exception flags.
FLAGS += ["-fno-math-errno", "-fno-trapping-math"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *AVX2]
AVX512_BF16 = [*AVX512, "-mavx512bf16"]
VECTOR_FLAGS = {  # each is a superset of those behind it
    "AMX": [*AVX512_BF16, "-mamx-tile", "-mamx-bf16"],
    "AVX512_BF16": AVX512_BF16,
    "AVX512": AVX512,
    "AVX2": AVX2,
}
CPUINFO = Path("/proc/cpuinfo")
COMPILERS = ("c++", "g++", "clang++")

log = logging.getLogger("octavo.kernels")


def cache_folder() -> Path:
    """`OCTAVO_CACHE`, else `octavo` in `XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("OCTAVO_CACHE"):
        return Path(own).expanduser()
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "octavo"


def processor() -> str:
    """This machine's capability: what torch says it is, and `AVX512_BF16` or `AMX` where Linux
    lists those extensions too. Torch has public questions for them only in its latest versions."""
    capability = torch.backends.cpu.get_cpu_capability()
    listed = _flags()
    if capability != "AVX512" or "avx512_bf16" not in listed:
        return capability
    return "AMX" if "amx_bf16" in listed else "AVX512_BF16"


def _flags() -> list[str]:
    """What Linux lists, the processor's extensions among it; nothing where it has no list."""
    try:
        return CPUINFO.read_text().split()
    except OSError:
        return []


class NotBuilt(Exception):
    """There is no library, for the reason in the message."""


def library(capability: str | None = None) -> Path | None:
    """The compiled library, built first if need be; None (and one warning) if that cannot be done.

    `capability` is a key of `VECTOR_FLAGS` or anything else for the portable build; by default it
    is this machine's. Then a compiler that is older than the machine's extensions, or a library
    built on a machine without them, gives the next best one.
    """
    choices = [capability or processor()]
    if capability is None and choices[0] in VECTOR_FLAGS:
        names = list(VECTOR_FLAGS)
        choices = names[names.index(choices[0]) :]
    for choice in choices:
        try:
            return compiled(FLAGS + VECTOR_FLAGS.get(choice, []))
        except NotBuilt as error:
            reason = str(error)
    log.warning("%s", reason)
    return None


def compiled(flags: list[str]) -> Path:
    """The library made with these flags. Raises `NotBuilt`."""
    sources = sorted(SOURCES.iterdir())
    folder = cache_folder() / "kernels"
    stem = "kernels-" + _digest(
        platform.system(), platform.machine(), *flags, *(f.read_bytes() for f in sources)
    )
    compiler = _compiler()
    if compiler is None:
        for built in sorted(folder.glob(f"{stem}-*.so")):
            return built
        raise NotBuilt(
            f"no C++ compiler found (CXX, or one of {', '.join(COMPILERS)} on PATH): attention "
            "runs on the slower torch kernels; install g++ to get the native ones"
        )
    try:
        target = folder / f"{stem}-{_digest(*compiler, _version(compiler))}.so"
        if not target.exists():
            units = [str(f) for f in sources if f.suffix == ".cpp"]
            _compile([*compiler, *flags, *units], target)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotBuilt(
            f"compiling the native kernels with {shlex.join(compiler)} failed ({last}): attention "
            "runs on the slower torch kernels; set CXX to another compiler"
        ) from error
    except OSError as error:
        raise NotBuilt(
            f"the native kernels could not be built in {folder} ({error}): attention runs on the "
            "slower torch kernels; set OCTAVO_CACHE to a folder that can be written"
        ) from error
    return target


def _compile(command: list[str], target: Path) -> None:
    """Runs `command` to make `target`. One process at a time; the file appears whole."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            made = Path(work) / target.name
            subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True)
            made.replace(target)


def _compiler() -> list[str] | None:
    """The command to run, as a list; `CXX` may carry arguments."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    return None


def _version(compiler: list[str]) -> str:
    return subprocess.run(
        [*compiler, "--version"], check=True, capture_output=True, text=True
    ).stdout


def _digest(*parts: str | bytes) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        total.update(len(raw).to_bytes(8, "little") + raw)
    return total.hexdigest()
