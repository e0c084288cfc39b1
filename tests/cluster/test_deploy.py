"""`octavo deploy` and `octavo status` without a cluster: files and addresses that are wrong."""

from __future__ import annotations

import socket

import pytest

from octavo.cluster.cli import deploy
from octavo.cluster.cli import main as cli
from octavo.cluster.cli.console import Console
from octavo.cluster.cli.deploy import read_config
from octavo.cluster.deployments import IMPORT_PATH
from octavo.scheduler.errors import EngineDead
from tests.cluster.test_deployments import deployment, details

GOOD = f"""
applications:
- import_path: {IMPORT_PATH}
  args:
    models:
    - model: /m/a
"""


def refused(capsys, *argv, code=2):
    assert cli.main(argv) == code
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(said) and said[-1].startswith("octavo: error: ")
    return said[-1]


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_an_application_without_a_name_gets_serves_default(file):
    assert read_config(file(GOOD))["applications"][0]["name"] == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML: line 1"),
        ("just words", "it has no list of applications"),
        ("applications: {}", "it has no list of applications"),
        ("applications: [one]", "it has no list of applications"),
        ("applications: []", f"has no application with import_path: {IMPORT_PATH}"),
        ("applications: [{import_path: my.app:app}]", "has no application with import_path"),
        (GOOD.replace("model:", "modell:"), "application default: args.models[0] has no argument"),
        (GOOD.replace("models:", "model:"), "application default: args has no argument 'model'"),
        (f"applications: [{{import_path: '{IMPORT_PATH}', args: 3}}]", "args must be a mapping"),
        (GOOD + "  num_replicas: two\n  deployments: 3\n", "applications.0.deployments"),
        (GOOD + "http_options: {port: many}\n", "http_options.port"),
    ],
)
def test_a_file_that_is_wrong_is_refused_before_anything_is_asked(capsys, file, text, words):
    assert words in refused(capsys, "deploy", file(text), "--address", "http://127.0.0.1:1")


def test_a_file_that_is_not_there_is_refused(capsys, tmp_path):
    said = refused(capsys, "deploy", str(tmp_path / "none.yaml"))
    assert "cannot read" in said and "No such file" in said


@pytest.mark.parametrize("command", ["deploy", "status"])
def test_a_cluster_that_is_not_there_is_one_sentence(capsys, file, command):
    files = [file(GOOD)] if command == "deploy" else []
    said = refused(capsys, command, *files, "--address", "http://127.0.0.1:1")
    assert "there is no Ray cluster at --address http://127.0.0.1:1" in said
    assert "ray start --head" in said


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:6379", "ray://host:10001", "http://"])
def test_an_address_that_is_no_dashboards_is_refused(capsys, address):
    assert "is not a dashboard's address" in refused(capsys, "status", "--address", address)


def test_what_is_no_ray_cluster_is_said_so(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        port = other.getsockname()[1]
        other.close()
        said = refused(capsys, "status", "--address", f"http://127.0.0.1:{port}")
    assert "there is no Ray cluster" in said


def test_help_shows_what_a_file_looks_like(capsys, monkeypatch):
    monkeypatch.delenv("RAY_DASHBOARD_ADDRESS", raising=False)
    with pytest.raises(SystemExit):
        cli.main(["deploy", "--help"])
    said = capsys.readouterr().out
    assert IMPORT_PATH in said and "--timeout" in said and "http://127.0.0.1:8265" in said


class Cluster:
    """Serve's words on the application `default`, one after the other; the last one for ever."""

    def __init__(self, *statuses):
        running = {
            "o--a": deployment("HEALTHY", ["RUNNING"] * 2, 2),
            "b": deployment("HEALTHY", ["RUNNING"], 1),
        }
        self._told = [details(running, status, "A replica died.") for status in statuses]

    def details(self):
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]


def wait(cluster, monkeypatch, healing):
    monkeypatch.setattr(deploy, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deploy, "HEALING_SECONDS", healing)
    return deploy._wait(cluster, {"default"}, set(), Console(), timeout=60)


def test_what_is_unhealthy_while_it_is_deployed_may_heal(monkeypatch):
    cluster = Cluster("UNHEALTHY", "UNHEALTHY", "DEPLOYING", "UNHEALTHY", "RUNNING")
    [application] = wait(cluster, monkeypatch, healing=60)
    assert application.healthy


def test_what_stays_unhealthy_ends_the_wait(monkeypatch):
    with pytest.raises(EngineDead, match=r"default unhealthy: A replica died\."):
        wait(Cluster("DEPLOYING", "UNHEALTHY"), monkeypatch, healing=0.05)


def test_what_failed_to_deploy_does_not_heal(monkeypatch):
    with pytest.raises(EngineDead, match="default deploy failed"):
        wait(Cluster("DEPLOY_FAILED"), monkeypatch, healing=60)
