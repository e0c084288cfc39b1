"""The files for `ray up`: valid to Ray, and alike where the clouds do not differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

FOLDER = Path(__file__).parents[2] / "cluster" / "ray_up"
FILES = ("local", "aws", "gcp", "azure")


def read(name):
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def test_there_is_a_file_for_each_place():
    assert {path.stem for path in FOLDER.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_ray_takes_the_file(name):
    config = prepare_config(read(name))
    validate_config(config)
    assert config["provider"]["type"] == name


def test_a_field_that_ray_does_not_know_is_refused():
    with pytest.raises(Exception, match="setup_comands"):
        validate_config(prepare_config(read("aws") | {"setup_comands": []}))


@pytest.mark.parametrize("name", FILES)
def test_all_nodes_are_set_up_in_one_way(name):
    one, local = read(name), read("local")
    for field in ("file_mounts", "setup_commands", "worker_start_ray_commands"):
        assert one[field] == local[field], field
    starts = [" ".join(each["head_start_ray_commands"]) for each in (one, local)]
    assert starts[0].replace(" RAY_enable_autoscaler_v2=0", "") == starts[1].replace(
        " RAY_enable_autoscaler_v2=0", ""
    )


@pytest.mark.parametrize("name", FILES)
def test_the_dashboard_is_closed_to_the_network_and_a_token_is_asked_for(name):
    config = read(name)
    [head] = [each for each in config["head_start_ray_commands"] if "--head" in each]
    assert "--dashboard-host=127.0.0.1" in head
    assert any("RAY_AUTH_MODE=token" in each for each in config["setup_commands"])
    assert "~/.ray/auth_token" in config["file_mounts"]


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_nodes_of_the_clouds_come_and_go_with_demand(name):
    types = read(name)["available_node_types"]
    assert set(types) == {"head", "cpu", "gpu"}
    for kind in ("cpu", "gpu"):
        assert types[kind]["min_workers"] == 0 < types[kind]["max_workers"]
