"""What a user sees when a server cannot start, and the way without Ray."""

from __future__ import annotations

import re
import ssl

import httpx
import openai
import pytest

from octavo.cluster.cli.main import main
from tests.cluster.test_server import write_pair
from tests.e2e.server import Server, wait_for


@pytest.fixture
def start(tmp_path, tiny_model):
    """Starts a server on a tiny model; whatever happens, it is ended."""
    servers = []

    def start(*arguments):
        server = Server(tmp_path / "log", str(tiny_model()), "--num-threads", "1", *arguments)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.end()


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_cache_too_small_for_one_request_is_explained(start, executor):
    server = start("--executor", executor, "--kv-cache-memory-bytes", "4KiB", "--dtype=float32")
    assert server.process.wait(120) == 2
    assert "octavo: error: the KV cache has no room for one request of 512 tokens" in server.log
    assert "Traceback" not in server.log
    wait_for(lambda: not server.survivors(), 20, "the end of all processes")


def test_ctrl_c_while_starting_leaves_nothing(start):
    server = start("--kv-cache-memory-bytes", "16MiB")
    wait_for(lambda: "starting Ray Serve" in server.log, 60, "Ray's start")
    assert server.interrupt() == 0
    wait_for(lambda: not server.survivors(), 20, "the end of all processes")
    assert "Traceback" not in server.log and server.log.rstrip().endswith("stopped")


def test_one_process_without_ray(start, tmp_path, capsys):
    keys, pair = tmp_path / "keys", write_pair(tmp_path, "octavo")
    keys.write_text("k")
    access = ["--api-key-file", str(keys), "--ssl-certfile", pair.certfile]
    access += ["--ssl-keyfile", pair.keyfile, "--enable-log-requests"]
    journal = str(tmp_path / "journal")
    access += ["--journal", journal]
    server = start("--executor", "local", "--kv-cache-memory-bytes", "16MiB", *access)
    server.wait_until_ready()
    url = f"https://localhost:{server.port}"
    trusting = ssl.create_default_context(cafile=pair.certfile)
    with httpx.Client(verify=trusting) as http:
        assert http.get(f"{url}/health").status_code == 200
        assert not server.family(), "no Ray, no other process"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", http_client=http) as client:
            name = client.models.list().data[0].id
            answer = client.completions.create(
                model=name, prompt="fold", extra_body={"ignore_eos": True}
            )
    assert answer.usage.completion_tokens > 0
    capsys.readouterr()
    assert main(["why", answer.id, journal]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"request {answer.id}") and "it ended at its full length" in told
    assert "'fold'; " in server.log and f"https://127.0.0.1:{server.port}/v1" in server.log
    assert server.interrupt() == 0
    assert "Traceback" not in server.log and server.log.rstrip().endswith("stopped")
    assert main(["replay", journal]) == 0
    assert re.fullmatch(
        rf"{journal}: \d+ plans for 1 requests, all equal\n", capsys.readouterr().out
    )
