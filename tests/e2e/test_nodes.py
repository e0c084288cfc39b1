"""Ranks of one model on several nodes, what is said where they cannot start, and the loss of a node
under load. One cluster for the module; the last test takes a node from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import yaml

from octavo.cluster.deployments import IMPORT_PATH
from tests.e2e.answers import CALLS, Asking, assert_same
from tests.e2e.cluster import free_port
from tests.e2e.nodes import Nodes
from tests.e2e.server import wait_for

HEAD, LEFT, RIGHT = (f"127.0.0.{number}" for number in (10, 11, 12))


@pytest.fixture(scope="module")
def dashboard():
    return free_port()


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def nodes(dashboard):
    nodes = Nodes()
    try:
        nodes.head(HEAD, free_port(), "--num-cpus=2", f"--dashboard-port={dashboard}")
        for address, gpus in ((LEFT, 0), (RIGHT, 2)):
            nodes.add(
                address,
                *("--num-cpus=12", f"--num-gpus={gpus}"),
                f'--resources={{"leaf": 5, "{address}": 9}}',
            )
        yield nodes
    finally:
        nodes.end()


@pytest.fixture(scope="module")
def jobs(nodes, dashboard, port, tiny_model, tmp_path_factory):
    """Futures of groups that cannot start and of the deployment of what is served. Both wait much,
    and there is room for both."""
    model, folder = str(tiny_model()), tmp_path_factory.mktemp("nodes")
    with ThreadPoolExecutor(2) as pool:
        yield (
            pool.submit(run, nodes, "tests.e2e.cannot_start", nodes.address, model, LEFT, RIGHT),
            pool.submit(deploy, nodes, dashboard, port, model, folder),
        )


def run(nodes, module, *arguments):
    """The output of a program that uses the cluster."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=nodes.environment,
        cwd=Path(__file__).parents[2],
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(jobs):
    return json.loads(jobs[0].result())


RANK = r"rank [01] \(pid \d+ on 127\.0\.0\.1[12]\) "


EXPECTED = {
    "another version": RANK
    + r"runs octavo 0\.1\.\d+, and the scheduler 0\.0\.1; install the same on "
    "every node of the cluster",
    "a rank that is missing": r"rank 0 \(on 127\.0\.0\.1[12]\), rank 1 \(on 127\.0\.0\.1[12]\) "
    "did not start within 3 s",
    "a port that is taken": RANK
    + r"could not meet the others at tcp://127\.0\.0\.1[12]:\d+: Dist\w+: .*",
    "a port that is blocked": RANK
    + r"could not meet the others at tcp://127\.0\.0\.1[12]:\d+: Dist\w+: .*",
    "no GPU": RANK + r"could not meet the others at \S+: torch finds no GPU there; .*",
}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_group_that_cannot_start_says_which_rank_where_and_why(said, case):
    import torch

    if case == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is one")
    assert re.fullmatch(EXPECTED[case], said[case]), said[case]


def deploy(nodes, dashboard, port, model, folder):
    """The same model twice: on both nodes, one rank on each, and by two replicas of one rank."""
    common = {"model": model, "device": "cpu", "dtype": "float32"}
    common |= {"kv_cache_memory_bytes": "8MiB", "num_threads": 1}
    spread = {"tensor_parallel_size": 2, "placement_group_strategy": "SPREAD"}
    models = [
        {"served_model_name": "spread", **spread, "resources": {"leaf": 0.1}, **common},
        {"served_model_name": "pair", "num_replicas": 2, "resources": {"leaf": 3}, **common},
    ]
    application = {"name": "nodes", "import_path": IMPORT_PATH, "args": {"models": models}}
    file = folder / "serve.yaml"
    # One way in: the proxies of all nodes would share this machine's port, and a client of the
    # proxy on the node that is lost would be lost too.
    config = {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
    file.write_text(yaml.safe_dump(config | {"applications": [application]}))
    address = f"http://127.0.0.1:{dashboard}"
    arguments = ("deploy", str(file), "--address", address, "--timeout", "240")
    run(nodes, "octavo.cluster.cli.main", *arguments)


@pytest.fixture(scope="module")
def client(jobs, port):
    jobs[1].result()
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def calls_to(*models):
    return {f"{m} {name}": {**CALLS[name], "model": m} for m in models for name in CALLS}


@pytest.fixture(scope="module")
def undisturbed(client):
    return dict(Asking(client, "undisturbed", calls_to("pair")).answers(60))


def test_two_ranks_on_two_nodes_answer_as_one_does(nodes, client, undisturbed):
    _, left, right = nodes.nodes
    for node in (left, right):
        assert len(node.actors("WorkerActor")) == 2, "one rank of each model"
    for name, answer in Asking(client, "spread", calls_to("spread")).answers(60):
        assert_same(answer, undisturbed[name.replace("spread", "pair")], name)


def test_no_stream_fails_where_a_node_is_lost(nodes, client, undisturbed):
    """One without the ingress, which clients are connected to."""
    asking = Asking(client, "lost", calls_to("pair", "spread"))
    victim = next(n for n in nodes.nodes[1:] if not n.actors("ServeReplica:nodes:Ingress"))
    assert len(victim.actors("WorkerActor")) == 2
    victim.kill()
    for name, answer in asking.answers(90):
        assert_same(answer, undisturbed[name.replace("spread", "pair")], name)
    models = [model.id for model in client.models.list()]
    assert models == ["spread", "pair"]
    wait_for(
        lambda: client.completions.create(model="spread", prompt="fold", max_tokens=1).choices,
        60,
        "an answer of the new group",
    )
