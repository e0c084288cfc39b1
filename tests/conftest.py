"""Models that several folders test with, built once a session in a temporary directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TinyModel = Callable[..., Path]


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
