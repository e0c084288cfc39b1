"""Requests that schemathesis thinks of, by OpenAI's description of its API and by our own: none is
a fault of the server's, and each answer is one that was described.

`OCTAVO_EXAMPLES` says how many it may think of for each route, of which there are 4 and 14.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.case_server import Server

EXAMPLES = os.environ.get("OCTAVO_EXAMPLES", "12")
THEIRS = Path(__file__).parent / "schemas" / "openai.json"
# Their examples ask for as many tokens as a large model gives, and for models that are not here.
HOOKS = """
import schemathesis

@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and "tokens" not in body:
        body = {**body, "max_tokens": 2, "max_output_tokens": 2}
        body.pop("model", None)
        body.pop("max_completion_tokens", None)
    return body
"""


@pytest.mark.parametrize("description", ["openai", "octavo"])
def test_every_answer_is_one_that_was_described(
    server: Server, description: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    url = str(server.http.base_url)
    checks = "not_a_server_error,response_schema_conformance"
    if description == "octavo":
        spec = [f"{url}/openapi.json"]
        checks += ",status_code_conformance,content_type_conformance"
    else:
        spec = [str(THEIRS), "--url", f"{url}/v1"]
    run = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    chosen = ["--phases", "fuzzing", "--max-examples", EXAMPLES, "--seed", "1", "--no-color"]
    done = subprocess.run(
        [sys.executable, "-c", run, "run", *spec, "--checks", checks, *chosen],
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "Test cases:" in done.stdout
    assert server.settles()
