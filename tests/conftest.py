"""Models that several folders test with, built once a session in a temporary directory."""

from __future__ import annotations

import gc
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
START_RAY = ("chaos", "e2e", "ray_up")
START_NO_RAY = (  # of those folders
    *("chaos/test_load.py", "chaos/test_oracle.py", "ray_up/test_cluster_files.py"),
    *("e2e/test_beams.py", "e2e/test_bfloat16.py", "e2e/test_cases_memory.py"),
    *("e2e/test_quantized.py", "e2e/test_structured.py"),
)
LONGEST_FIRST = ("ray", "kernels")


def scope_of(nodeid: str) -> str:
    """`make test` runs two tests at a time: those that start Ray, one after another, as they wait
    for most of their time, and beside them all others, a folder of kernels or a file at a time."""
    path = nodeid.partition("::")[0]
    folder, _, file = path.removeprefix("tests/").partition("/")
    if folder in START_RAY and f"{folder}/{file}" not in START_NO_RAY:
        return "ray"
    return folder if folder == "kernels" else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first, so that neither of the two is left with it at the end."""
    ranks = {scope: rank for rank, scope in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(scope_of(item.nodeid), len(ranks)))


def pytest_collection_finish() -> None:
    """Five thousand tests are most of what the garbage collector would walk through again and
    again, for seconds on a slow machine, in which servers inside of this process stand still."""
    gc.collect()
    gc.freeze()


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
