"""A second run of what failed: forgives what passes alone, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import again

ROOT = Path(__file__).parents[1]
DISTURBED = """
from pathlib import Path
def test_first():
    Path("prepared").write_text("")
def test_second():
    assert Path("prepared").exists() and Path("quiet").exists()
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("broken", [False, True])
def test_the_modules_of_failed_tests_run_once_more(tmp_path: Path, broken: bool) -> None:
    (tmp_path / "test_disturbed.py").write_text(DISTURBED)
    (tmp_path / "test_other.py").write_text("def test_it():\n    assert not __debug__\n" * broken)
    assert run(tmp_path, "pytest", "--cache-clear").returncode == 1
    (tmp_path / "prepared").unlink()
    (tmp_path / "quiet").touch()
    second = run(tmp_path, "tests.again")
    assert second.returncode == broken, second.stdout
    named = "DISTURBED, for they pass alone:\n  test_disturbed.py::test_second" in second.stdout
    assert named is not broken


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    tests = "".join(f"def test_{i}():\n    assert not __debug__\n" for i in range(again.MOST + 1))
    (tmp_path / "test_all.py").write_text(tests)
    run(tmp_path, "pytest", "--cache-clear")
    second = run(tmp_path, "tests.again")
    assert second.returncode == 1
    assert second.stdout.startswith(f"{again.MOST + 1} tests failed: they are not tried again")
