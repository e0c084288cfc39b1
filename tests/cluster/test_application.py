"""What Serve is told to build, short of a cluster to build it on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from octavo.cluster.arguments import draft_config, read_application
from octavo.cluster.distributed.application import app, plan_front, plan_replica
from octavo.cluster.distributed.placement import bundles
from octavo.scheduler.errors import InvalidRequest
from tests.conftest import TinyModel


def model(**arguments: Any) -> Any:
    """As the builder hands it on: the device is decided."""
    [read] = read_application({"models": [{"device": "cpu", **arguments}]}).models
    return read


def test_wrong_arguments_are_an_error_that_serve_tells_as_it_is() -> None:
    with pytest.raises(RayServeException) as caught:
        app({"models": [{"modell": "/m"}]})
    assert str(caught.value) == ("args.models[0] has no argument 'modell'; did you mean model?")


def test_a_replica_finds_out_where_it_runs_what_it_serves(tiny_model: TinyModel) -> None:
    path = tiny_model()
    spec = plan_replica(model(model=str(path), max_model_len=100, block_size=32), neighbours=1)
    assert (spec.config.model, spec.max_model_len, spec.notices) == (str(path), 100, None)
    assert spec.config.block_size == 32 and spec.config.revision
    with pytest.raises(InvalidRequest, match="there is no directory /no/such"):
        plan_replica(model(model="/no/such"), neighbours=1)


def test_ranks_share_the_cores_of_their_machine(tiny_model: TinyModel) -> None:
    cores = len(os.sched_getaffinity(0))
    path = str(tiny_model())
    assert plan_replica(model(model=path), neighbours=1).config.threads == cores
    assert plan_replica(model(model=path), neighbours=10 * cores).config.threads == 1
    assert plan_replica(model(model=path, num_threads=7), neighbours=10).config.threads == 7


def test_a_replica_comes_up_without_torch_and_transformers() -> None:
    """They take seconds to import, in which its requests wait for it."""
    code = (
        "import sys, octavo.cluster.distributed.application;"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_ingress_takes_keys_from_where_it_runs(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", " a, b\nc ")
    monkeypatch.setenv("OCTAVO_ADMIN_API_KEY", "boss\n")
    path = str(tiny_model())
    (tmp_path / "keys").write_text("d")
    monkeypatch.setenv("OCTAVO_API_KEY_FILE", str(tmp_path / "keys"))
    shared = {"request_timeout": 5.0}
    settings = plan_front(model(model=path, served_model_name=["n", "m"], seed=3), shared)
    assert (settings.request_timeout, settings.api_key_file) == (5.0, str(tmp_path / "keys"))
    assert (settings.model_path, settings.served_model_names) == (path, ("n", "m"))
    assert (settings.api_keys, settings.admin_api_key, settings.seed) == (
        ("a", "b", "c"),
        "boss",
        3,
    )
    monkeypatch.setenv("OCTAVO_API_KEY", " , ")
    with pytest.raises(InvalidRequest, match="must not be empty"):
        plan_front(model(model=path), {})


def test_custom_resources_are_taken_by_every_rank_and_by_nobody_else() -> None:
    asked = model(model="/m", tensor_parallel_size=2, resources={"group_l4": 0.001})
    front, *ranks = bundles(draft_config(asked), asked.resources)
    assert front == {"CPU": 1.0}
    assert ranks == [{"group_l4": 0.001, "CPU": 1.0}] * 2
