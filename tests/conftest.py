"""Models that several folders test with, built once a session in a temporary directory."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if shutil.which("nvidia-smi") is None:  # read when triton is first imported, whoever does it
    os.environ.setdefault("TRITON_INTERPRET", "1")

TinyModel = Callable[..., Path]
STARTS_RAY = ("chaos", "e2e", "ray_up")


def scope_of(nodeid: str) -> str:
    """`make test` runs two tests at a time: those that start Ray, one after another, as they wait
    for most of their time, and beside them all others, a folder of kernels or a file at a time."""
    file = nodeid.partition("::")[0]
    folder = file.split("/")[1]
    return "ray" if folder in STARTS_RAY else folder if folder == "kernels" else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: scope_of(item.nodeid) != "ray")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A second thread helps none of our small problems, and where others use the machine the first
    spends its time waiting for it. What is to be tested with more threads asks for them."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny_model(family="llama", kv_heads=4, tie=True, seed=0)`: a checkpoint's directory, the
    same one for the same arguments. Do not write into it."""
    from tests.tiny import make_tiny

    root = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def build(family: str = "llama", kv_heads: int = 4, tie: bool = True, seed: int = 0) -> Path:
        name = f"{family}-kv{kv_heads}-{'tied' if tie else 'untied'}-{seed}"
        if name not in made:
            made[name] = make_tiny(root / name, family, kv_heads=kv_heads, tie=tie, seed=seed)
        return made[name]

    return build
