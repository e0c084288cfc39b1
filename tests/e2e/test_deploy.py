"""Two models in one cluster by a Serve config file, each with its own replicas, behind one URL.

The tests go on where the ones before them stopped: starting Ray is what takes long.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from octavo.cluster.deployments import IMPORT_PATH
from octavo.cluster.distributed.replies import LEASE_SECONDS
from tests.e2e.answers import CALLS, Asking, assert_same
from tests.e2e.cluster import Cluster, free_port
from tests.e2e.server import RUNNING, gauge, wait_for

KEY = "sesame"
INGRESS = "ServeReplica:models:Ingress"
CHART = Path(__file__).parents[2] / "helm" / "octavo"


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster(KEY)
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def config(tiny_model):
    common = {"dtype": "float32", "kv_cache_memory_bytes": "8MiB", "num_threads": 1}
    small = {
        "model": str(tiny_model("llama-long")),
        "served_model_name": ["small", "s"],
        "num_replicas": 2,
    }
    other = {"model": str(tiny_model("qwen3")), "served_model_name": "team/other", "block_size": 32}
    return {
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "applications": [
            {
                "name": "models",
                "route_prefix": "/llm",
                "import_path": IMPORT_PATH,
                "args": {
                    "models": [{**small, **common}, {**other, **common}],
                    "ingress_replicas": 2,
                },
            }
        ],
    }


@pytest.fixture
def file(tmp_path, config):
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.fixture(scope="module")
def url(config):
    return f"http://127.0.0.1:{config['http_options']['port']}/llm"


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_without_the_clusters_token_nothing_is_told(cluster):
    done = cluster.octavo("status", token=False)
    assert done.returncode == 2 and "does not know this token; set RAY_AUTH_MODE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_serves_nothing_says_so(cluster):
    done = cluster.octavo("status")
    assert (done.returncode, done.stderr) == (1, "")
    assert "Octavo serves no model on this cluster" in done.stdout


def test_serve_deploy_takes_the_file_and_octavo_deploy_waits_for_it(cluster, file, url):
    sent = cluster.serve("deploy", file)
    assert sent.returncode == 0, sent.stderr
    done = cluster.octavo("deploy", file)
    assert done.returncode == 0, done.stderr
    assert "small: 2 of 2 replica(s) run" in done.stderr
    assert "team/other: 1 of 1 replica(s) run" in done.stderr
    assert "Octavo serves small, team/other" in done.stderr and f"{url}/v1" in done.stderr
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_the_models_name_chooses_the_model(client, url):
    assert [model.id for model in client.models.list()] == ["small", "s", "team/other"]

    def ask(model):
        answer = client.completions.create(
            model=model, prompt="An octavo", max_tokens=8, temperature=0
        )
        assert answer.model == model
        return answer.choices[0].text

    assert ask("small") == ask("s") != ask("team/other")
    with pytest.raises(openai.NotFoundError, match="'small', 's', 'team/other'"):
        ask("large")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()


def test_the_charts_test_and_probe_pass_here(url, config):
    script = CHART / "files" / "completion_test.py"
    environment = {"URL": url, "OCTAVO_API_KEY": f"{KEY},another"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "small answers\ns answers\nteam/other answers\n"
    port = config["http_options"]["port"]
    assert httpx.get(f"http://127.0.0.1:{port}/-/healthz").status_code == 200


def test_each_model_has_its_own_replicas_in_the_metrics(url):
    wait_for(lambda: len(gauge(url, RUNNING, "small")) == 2, 20, "two replicas")
    assert len(gauge(url, RUNNING, "team/other")) == 1
    assert len(gauge(url, RUNNING)) == 3


def test_status_shows_each_model(cluster):
    done = cluster.octavo("status")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1:3] == [
        ["small", "models", "2/2", "healthy"],
        ["team/other", "models", "1/1", "healthy"],
    ]


def test_an_ingress_that_is_killed_takes_its_own_streams_and_no_others(cluster, client, url):
    """Its clients' connections end with it. What it had asked of the replicas is given up there."""
    fields = {"model": "small", "max_tokens": 1500}  # so that they still run once all have begun
    calls = {name: {**CALLS[name], **fields} for name in ("greedy", "seeded", "samples")}
    undisturbed = dict(Asking(client, "undisturbed", calls).answers(60))
    fates = []
    for attempt in range(4):  # it is Serve that chooses among ingresses: all nine may go one way
        wait_for(lambda: cluster.running("models", "Ingress") == 2, 60, "two ingresses")
        victim = cluster.actors(INGRESS)[0]  # found beforehand: that takes time
        asking = Asking(client, f"two ways in {attempt}", calls, copies=3)
        victim.kill()
        survivors = asking.survivors(60)
        for name, answer in survivors:
            assert_same(answer, undisturbed[name], name)
        wait_for(lambda: len(cluster.actors(INGRESS)) == 2, 60, "a new ingress")
        fates.append(len(survivors))
        if 1 <= len(survivors) <= 8:
            break
    else:
        pytest.fail(f"of nine streams over two ingresses, {fates} survived")
    wait_for(
        lambda: list(gauge(url, RUNNING, "small").values()) == [0.0, 0.0],
        3 * LEASE_SECONDS,
        "an end of what nobody waits for",
    )
    for name, answer in Asking(client, "afterwards", calls).answers(60):
        assert_same(answer, undisturbed[name], name)
    wait_for(lambda: cluster.octavo("status").returncode == 0, 60, "health in Serve's eyes too")


def test_models_that_cannot_serve_have_one_sentence_and_the_others_serve_on(
    cluster, config, file, client, url, tiny_model
):
    broken = {
        "name": "broken",
        "route_prefix": "/broken",
        "import_path": IMPORT_PATH,
        "args": {"models": [{"model": "/no/such/model"}]},
    }
    cramped = {"model": str(tiny_model()), "kv_cache_memory_bytes": "64KiB", "dtype": "float32"}
    without_room = {
        "name": "cramped",
        "route_prefix": "/cramped",
        "import_path": IMPORT_PATH,
        "args": {"models": [{**cramped, "served_model_name": "c", "failover_timeout": 0.5}]},
    }
    config = {**config, "applications": [*config["applications"], broken, without_room]}
    with open(file, "w") as out:
        yaml.safe_dump(config, out)
    done = cluster.octavo("deploy", file)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("octavo: error: application broken")
    assert "there is no directory /no/such/model" in last and "Traceback" not in done.stderr
    answer = client.completions.create(model="small", prompt="An octavo", max_tokens=2)
    assert answer.usage.completion_tokens > 0
    shown = cluster.octavo("status", "--json")
    assert shown.returncode == 1
    told = {each["name"]: each for each in json.loads(shown.stdout)["applications"]}
    reason = told["broken"]["models"][0]["reason"]
    assert "there is no directory /no/such/model" in reason["text"]
    assert told["models"]["healthy"]
    assert told["models"]["models"][0]["states"] == {"RUNNING": 2}

    def told_why():
        """By the ingress, which is well and has it from Serve when a request wants a replica."""
        where, headers = url.removesuffix("/llm") + "/cramped", {"Authorization": f"Bearer {KEY}"}
        body = {"model": "c", "prompt": "An octavo"}
        answer = httpx.post(where + "/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 503
        return (
            "no replica is up; the last one's reason: the KV cache has no room for one request"
            in (httpx.get(where + "/health").json()["error"]["message"])
        )

    wait_for(told_why, 60, "the reason why there is no replica")
