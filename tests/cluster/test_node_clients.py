"""Clients from another world: the `openai` package of npm and Vercel's AI SDK, with all that their
types and parsers ask of an answer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.scheduler.request import Request
from tests.cluster.calls import Connect
from tests.cluster.case_server import Server
from tests.cluster.scripted import ScriptedEngine, Step, says
from tests.cluster.talks import AUTO, CALL, TALKER

THINKS = "<think>\nA sheet.\n</think>\n\n"
PROJECT = Path(__file__).parent / "node"
RunNode = Callable[[str, str], None]


@pytest.fixture(scope="module")
def run_node() -> RunNode:
    """`run_node(file, url)` runs the tests of that file against that server."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        if "CI" in os.environ:
            pytest.fail(".ci/run should have installed node and npm")
        pytest.skip("node and npm are not installed: install them to test what needs them")
    installed = PROJECT / "node_modules" / ".lock"  # a copy of what was installed from
    lock = (PROJECT / "package-lock.json").read_bytes()
    if not installed.exists() or installed.read_bytes() != lock:
        run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        installed.write_bytes(lock)

    def run_file(file: str, url: str) -> None:
        said = run([node, "--test", "--test-reporter=tap", file], OCTAVO_URL=url)
        counts = dict(re.findall(r"^# (tests|pass) (\d+)$", said, re.MULTILINE))
        assert int(counts["pass"]) == int(counts["tests"]) > 0, said

    return run_file


def run(command: list[str], **environment: str) -> str:
    """What a command of the node project prints; it must succeed."""
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("file", ["openai.test.mjs", "ai.test.mjs"])
def test_a_client_drives_the_server(server: Server, run_node: RunNode, file: str) -> None:
    run_node(file, str(server.http.base_url))
    assert server.settles(), "streams that were given up go on"


def test_tools_that_the_model_calls_are_run(connected: Connect, run_node: RunNode) -> None:
    def talk(request: Request) -> list[Step]:
        told = "It rains\n" in TALKER.decode(request.prompt)
        return list(says("It does." if told else f"{THINKS}I look.\n{CALL}")(request))

    engine = ScriptedEngine(talk, max_model_len=2000, num_blocks=200)
    with connected(engine, **AUTO, reasoning_parser="qwen3") as http:
        run_node("calls.test.mjs", str(http.base_url))
    assert len(engine.seen) == 8 and not engine.live
