"""A built wheel carries the four folders as octavo's own and works from anywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("scheduler", "kernels", "workers", "cluster")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    outcome = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no earlier build's remains get in and none are left behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("octavo", *FOLDERS):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=source)
    (built,) = out.glob("*.whl")
    return built


def sources() -> set[str]:
    """Names in the wheel that the repository's files must have."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    for folder in (ROOT / "kernels" / "csrc", ROOT / "cluster" / "api" / "dashboard"):
        files += [path for path in folder.iterdir() if path.is_file()]
    inside = {f"octavo/{path.relative_to(ROOT).as_posix()}" for path in files}
    return inside | {"octavo/__init__.py", "octavo/py.typed"}


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == sources()
    assert any(name.endswith("/licenses/LICENSE") for name in information)
    assert "octavo = octavo.cluster.cli.main:main" in entry_points


def test_an_installed_wheel_imports_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    run(*pip, wheel, cwd=elsewhere)
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sources()
        if name.endswith(".py")
    )
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    )
    printed = run("-c", script, *modules, cwd=elsewhere, PYTHONPATH=str(target))
    assert [Path(line).is_relative_to(target) for line in printed.splitlines()] == [True] * len(
        modules
    )


def test_what_is_imported_is_declared_and_nothing_else() -> None:
    """Distributions named in pyproject.toml are those that the four folders import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {_name(line) for line in project["dependencies"]}
    optional = {_name(line) for extra in ("cuda", "bench") for line in extras[extra]} - declared
    owners = packages_distributions()
    imported = {
        re.sub(r"[-_.]+", "-", owners[module][0]).lower()
        for module in _imported_modules()
        if module not in sys.stdlib_module_names and module != "octavo" and module in owners
    }
    assert imported - optional == declared


def _name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def _imported_modules() -> set[str]:
    found: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(
    "given, expected",
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_importing_octavo_keeps_torchs_threads_from_spinning(given, expected):
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    told = subprocess.run(
        [sys.executable, "-c", "import octavo, os; print(os.environ.get('GOMP_SPINCOUNT'))"],
        env=inherited | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == expected
