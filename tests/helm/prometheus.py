"""Prometheus itself and its promtool, as a distribution packages them, scraping a server of ours a
few times a second."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

SCRAPE_SECONDS = 0.25


def require(program: str) -> str:
    """Its path. Skips the test where it is not installed, and fails it in CI, unless that has said
    that it could not be had."""
    found = shutil.which(program)
    if found is None:
        reason = f"{program} is not installed; `apt-get install prometheus` brings it"
        without = os.environ.get("OCTAVO_CI_WITHOUT", "")
        if os.environ.get("CI") and "prometheus" not in without:
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def promtool(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [require("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


class Prometheus:
    """A running one, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[float]:
        """Values of all series that an expression gives now; NaN is none."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", answer
        values = [float(each["value"][1]) for each in answer["data"]["result"]]
        return [value for value in values if value == value]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def summary(self, alert: str) -> str:
        """What an alert says that fires; nothing where it does not."""
        alerts = [each for each in self._get("alerts")["alerts"] if each["state"] == "firing"]
        said = [a["annotations"] for a in alerts if a["labels"]["alertname"] == alert]
        return str(said[0]["summary"]) if said else ""

    def rules(self) -> dict[str, str]:
        """Alerts by name, with how evaluating them went."""
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Until something is so."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, f"not within {seconds} s; firing: {self.firing()}"
            time.sleep(0.1)
        return found

    def _get(self, what: str) -> Any:
        return httpx.get(f"{self.url}/api/v1/{what}").json()["data"]


@contextlib.contextmanager
def scraping(target: str, rules: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with these rules, that scrapes a server of ours, under both spellings of names."""
    program = require("prometheus")
    (folder / "rules.yaml").write_text(rules)
    address = target.removeprefix("http://")
    static = [{"targets": [address]}]
    config = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms",
            "scrape_timeout": f"{SCRAPE_SECONDS * 1000:.0f}ms",
            "evaluation_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms",
        },
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "octavo", "static_configs": static},
            {"job_name": "ray", "static_configs": static, "params": {"names": ["ray"]}},
        ],
    }
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))  # YAML, too
    checked = promtool("check", "config", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            served = Prometheus(f"http://127.0.0.1:{port}")
            _wait_until_ready(process, served.url, folder / "prometheus.log")
            yield served
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
