"""`ray up` -> `octavo deploy` -> request -> `ray down`, with `cluster/ray_up/local.yaml`, from a
laptop to a head and another machine, all three made here (see `tests.ray_up.machines`).

Not part of `make test`, but `make test-ray-up`. Everything of the file is used as it is but for the
addresses and the key; Octavo's wheel is installed, what it needs is there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from octavo.cluster.deployments import IMPORT_PATH
from tests.e2e.server import wait_for
from tests.ray_up.machines import HOME, Network, missing

ROOT = Path(__file__).parents[2]
FILE = ROOT / "cluster" / "ray_up" / "local.yaml"
TOKEN = {"RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
PROMPT = "An octavo is a sheet that"

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(1800),
]


def provide(machine):
    """Makes an environment there that has all that Octavo needs, but not Octavo: this one's, to
    read. So nothing is fetched, and pip has Octavo's wheel to install and no more."""
    base = Path(sys.base_prefix) / "bin" / "python3"
    made = machine.run(str(base), "-m", "venv", f"{HOME}/octavo")
    assert made.returncode == 0, made.stdout
    packages = Path(sysconfig.get_path("purelib"))
    own = machine.home / "octavo" / packages.relative_to(sys.prefix)
    for each in own.glob("setuptools*"):  # too old for torch, and found first
        shutil.rmtree(each)
    (own / "shared.pth").write_text(f"{packages}\n")
    script = (Path(sys.executable).parent / "ray").read_text().splitlines()
    command = machine.home / "octavo" / "bin" / "ray"
    command.write_text("\n".join([f"#!{HOME}/octavo/bin/python", *script[1:], ""]))
    command.chmod(0o755)
    (machine.home / ".config" / "pip").mkdir(parents=True)
    (machine.home / ".config" / "pip" / "pip.conf").write_text("[global]\nno-index = true\n")


@pytest.fixture(scope="module")
def network():
    folder = Path(tempfile.mkdtemp(prefix="octavo-", dir="/var/tmp"))
    network = Network(folder)
    try:
        yield network
    finally:
        network.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def laptop(network, tiny_model):
    """Where a person sits, who has made the wheel and a token, and whose models are on both other
    machines."""
    venv = Path(sys.prefix)
    subprocess.run(["make", "--old-file=install", "wheel", f"VENV={venv}"], cwd=ROOT, check=True)
    laptop, head, leaf = (network.add(name) for name in ("laptop", "head", "leaf"))
    shutil.copy(network.key, laptop.home / ".ssh" / "id_ed25519")
    for machine in (head, leaf):
        provide(machine)
        shutil.copytree(tiny_model(), machine.home / "tiny")
    file = yaml.safe_load(FILE.read_text())
    file["provider"] |= {"head_ip": head.address, "worker_ips": [leaf.address]}
    file["auth"] = {"ssh_user": "root", "ssh_private_key": f"{HOME}/.ssh/id_ed25519"}
    file |= {"min_workers": 1, "max_workers": 1}
    (laptop.home / "cluster.yaml").write_text(yaml.safe_dump(file))
    made = laptop.run("ray", "get-auth-token", "--generate", environment=TOKEN)
    assert made.returncode == 0, made.stdout
    return laptop


def ray(laptop, *arguments):
    done = laptop.run("ray", *arguments, environment=TOKEN)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_up_deploy_request_down(network, laptop, tiny_model):
    _, head, leaf = network.machines
    ray(laptop, "up", "--yes", f"{HOME}/cluster.yaml")
    began = time.monotonic()

    model = {"model": f"{HOME}/tiny", "served_model_name": "tiny", "dtype": "float32"}
    model |= {"tensor_parallel_size": 2, "placement_group_strategy": "SPREAD", "device": "cpu"}
    model |= {"kv_cache_memory_bytes": "8MiB", "num_threads": 1}
    http = {"host": "0.0.0.0", "port": 8000}
    application = {"name": "tiny", "import_path": IMPORT_PATH, "args": {"models": [model]}}
    (laptop.home / "models.yaml").write_text(
        yaml.safe_dump({"http_options": http, "applications": [application]})
    )
    with laptop.start("ray", "dashboard", f"{HOME}/cluster.yaml", environment=TOKEN) as way:
        try:
            address = ("--address", "http://127.0.0.1:8265")
            wait_for(
                lambda: laptop.run("octavo", "status", *address, environment=TOKEN).returncode == 1,
                60,
                "the dashboard's answer",
            )
            deploy = ("octavo", "deploy", f"{HOME}/models.yaml", *address, "--timeout", "900")
            done = laptop.run(*deploy, environment=TOKEN)
            print(done.stdout, time.monotonic() - began)
            assert done.returncode == 0, done.stdout
        finally:
            way.terminate()
    for machine in (head, leaf):
        ranks = [line for line in machine.processes() if line.startswith("ray::WorkerActor")]
        assert len(ranks) == 1, "one rank on each machine"

    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    answer = laptop.run(
        *("curl", "--silent", "--show-error", f"http://{head.address}:8000/v1/completions"),
        *("-H", "Content-Type: application/json", "-d", json.dumps(asked)),
    )
    text = json.loads(answer.stdout)["choices"][0]["text"]
    assert text == alone(tiny_model())

    ray(laptop, "down", "--yes", f"{HOME}/cluster.yaml")
    wait_for(lambda: not left(head), 60, "the end of all of Ray on the head")
    wait_for(lambda: not left(leaf), 180, "the end of all of Ray on the other machine")


def left(machine):
    """Ray's processes there."""
    return [line for line in machine.processes() if "ray::" in line or "raylet" in line]


def alone(model: Path) -> str:
    """The answer of one rank without Ray."""
    from octavo import LLM, SamplingParams

    with LLM(str(model), dtype="float32", kv_cache_memory_bytes=8 * 2**20) as llm:
        sampling = SamplingParams(max_tokens=24, temperature=0)
        [output] = llm.generate([PROMPT], sampling)
        return str(output.outputs[0].text)
