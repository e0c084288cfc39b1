"""The shape of the house: what may import what, and how large a file may grow."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("cluster", "workers", "scheduler", "kernels")

# What each folder may import of the house, besides itself.
ARROWS = {
    "scheduler": set(),
    "kernels": set(),
    "workers": {"kernels", "scheduler"},
    "cluster": {"workers", "kernels", "scheduler"},
}
SCHEDULER_LIBRARIES = {"msgspec", "msgpack"}
NOT_IN_SCHEDULER = {"time", "datetime", "random", "socket", "threading", "asyncio", "subprocess"}
KERNEL_LIBRARIES = {"torch", "numpy", "flashinfer", "triton"}
# Outside of `cluster/distributed`: the one Ray file of the workers, and two that start a Ray.
KNOW_RAY = {"workers/actor.py", "cluster/cli/launch_ray.py", "cluster/offline/executors.py"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_namespaces_behind_links(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
    link = ROOT / "octavo" / folder
    assert link.is_symlink() and os.readlink(link) == f"../{folder}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    for path in sources(folder):
        house = {name.split(".")[1] for name in imports(path) if name.startswith("octavo.")}
        assert house - {folder} <= ARROWS[folder], f"{path} imports {house}"


def test_the_scheduler_is_pure() -> None:
    for path in sources("scheduler"):
        names = {top(name) for name in imports(path)} - {"octavo", "__future__"}
        outside = names - set(sys.stdlib_module_names)
        assert outside <= SCHEDULER_LIBRARIES, f"{path} imports {outside}"
        assert not names & NOT_IN_SCHEDULER, f"{path} reaches for a clock or for I/O"


def test_kernels_import_little() -> None:
    for path in sources("kernels"):
        outside = {top(name) for name in imports(path)} - set(sys.stdlib_module_names)
        assert outside - {"octavo"} <= KERNEL_LIBRARIES, f"{path} imports {outside}"


def test_ray_is_fenced_in() -> None:
    knowing = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in sources(folder)
        if any(top(name) == "ray" for name in imports(path))
    }
    assert {name for name in knowing if not name.startswith("cluster/distributed/")} == KNOW_RAY


def test_files_stay_small() -> None:
    lengths = {
        path: len(path.read_text().splitlines()) for folder in FOLDERS for path in sources(folder)
    }
    assert max(lengths.values()) <= 400, max(lengths, key=lambda path: lengths[path])


def test_importing_the_scheduler_brings_neither_torch_nor_ray() -> None:
    code = (
        "import sys, octavo.scheduler.scheduler, octavo;"
        "octavo.SamplingParams(); print({'torch', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_public_names_can_be_imported() -> None:
    import octavo

    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        octavo.nothing_here  # noqa: B018
