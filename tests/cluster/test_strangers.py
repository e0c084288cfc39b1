"""Requests that schemathesis thinks of, by OpenAI's description of its API and by our own: none is
a fault of the server's, and each answer is one that was described.

`OCTAVO_EXAMPLES` says how many it may think of for each route that takes any, of which there are 3
and 6; without it there are 500 cases of either kind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.case_server import Server

ASKED = os.environ.get("OCTAVO_EXAMPLES")
THEIRS = Path(__file__).parent / "schemas" / "openai.json"
ROOT = Path(__file__).parents[2]
ANSWERED = "vllm:e2e_request_latency_seconds_count"


@pytest.mark.timeout(900)  # a thousand requests, perhaps beside other tests
@pytest.mark.parametrize(("description", "examples"), [("openai", 170), ("octavo", 85)])
def test_every_answer_is_one_that_was_described(
    server: Server, description: str, examples: int, tmp_path: Path
) -> None:
    url = str(server.http.base_url)
    before = server.metric(ANSWERED)
    checks = "not_a_server_error,response_schema_conformance"
    if description == "octavo":
        spec = [f"{url}/openapi.json"]
        checks += ",status_code_conformance,content_type_conformance"
    else:
        spec = [str(THEIRS), "--url", f"{url}/v1"]
    run = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    chosen = ["--phases", "fuzzing", "--max-examples", ASKED or str(examples), "--seed", "1"]
    # A database would keep hypothesis busy with which cases to keep for the next time.
    chosen += ["--generation-database", "none", "--no-color"]
    done = subprocess.run(
        [sys.executable, "-c", run, "run", *spec, "--checks", checks, *chosen],
        cwd=tmp_path,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.cluster.strangers_hooks",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    cases = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert cases is not None and cases[1] == cases[2], done.stdout[-5000:]
    assert server.settles()
    if ASKED is None:
        assert int(cases[1]) >= 500
        assert server.metric(ANSWERED) - before >= 100, "most are refused, so little is shown"
