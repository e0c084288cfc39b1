"""The alerts and the dashboard, by Prometheus itself: over made-up days, and over a server of ours
that is loaded, gets stuck, and goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from octavo.cluster.client import EngineClient
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker
from tests.cluster.serving import serve_engine, settings_for
from tests.conftest import TinyModel
from tests.helm.conftest import CHART
from tests.helm.prometheus import Prometheus, promtool, scraping

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
WINDOW = "3s"
# What a busy minute of a large model is, in seconds of a tiny one.
LIMITS = {
    "OctavoQueueLong": 4,
    "OctavoQueueOld": 0.2,
    "OctavoCacheFull": 0.5,
    "OctavoPreemptionsMany": 0.05,
    "OctavoFirstTokenSlow": 0.05,
}
UNDER_LOAD = {*LIMITS, "OctavoRefusesRequests"}
QUEUED, REQUESTS = 10, 28


class Stalling(LocalWorkers):
    """Ends no step while `stalled` is set."""

    def __init__(self, config: WorkerConfig, stalled: threading.Event) -> None:
        super().__init__(lambda: Worker(config))
        self._stalled = stalled

    async def execute(self, plan: bytes) -> bytes:
        while self._stalled.is_set():
            await asyncio.sleep(0.02)
        return await super().execute(plan)


@contextlib.contextmanager
def serving(model: Path, stalled: threading.Event) -> Iterator[str]:
    """A server with few blocks, a small queue and a host tier, over the real worker."""
    shared: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 16}
    config = WorkerConfig(
        str(model), dtype="float32", num_blocks_override=48, swap_space=0.001, num_threads=1,
        **shared,
    )  # fmt: skip

    @contextlib.asynccontextmanager
    async def open_engine() -> AsyncIterator[EngineClient]:
        def configure(_: Any) -> SchedulerConfig:
            return SchedulerConfig(max_num_queued_reqs=QUEUED, preemption_mode="swap", **shared)

        async with LocalEngine(Stalling(config, stalled), configure) as client:
            yield client

    with serve_engine(open_engine, settings_for(model)) as url:
        yield url


@contextlib.contextmanager
def load(url: str) -> Iterator[None]:
    """More requests than there is room for, ever new ones, half of them with a common prefix."""
    over = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            turn = 0
            while not over.is_set():
                turn += 1
                first = [number, turn] if number % 2 else [7] * 40
                body = {"prompt": [*first, *[number] * 30], "max_tokens": 120, "ignore_eos": True}
                if http.post("/v1/completions", json=body).is_error:
                    over.wait(0.1)  # refused, as some are to be

    with ThreadPoolExecutor(REQUESTS) as pool:
        asking = [pool.submit(ask, number) for number in range(REQUESTS)]
        try:
            yield
        finally:
            over.set()
    for each in asking:
        each.result()


def hasty(rules: str) -> str:
    """The alerts with short windows, no patience, and limits that the load goes beyond."""
    document = yaml.safe_load(rules)
    for alert in document["groups"][0]["rules"]:
        alert["for"] = "0s"
        expr = re.sub(r"\[\d+m\]", f"[{WINDOW}]", alert["expr"])
        limit = LIMITS.get(alert["alert"])
        alert["expr"] = re.sub(r"> [0-9.]+$", f"> {limit}", expr) if limit is not None else expr
    return json.dumps(document)


def panels() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard, with its panel's title, as Grafana would send it."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", WINDOW)
            yield panel["title"], expr.replace("$model", ".*").replace("$replica", ".*")


@pytest.fixture(scope="module")
def stalled() -> threading.Event:
    return threading.Event()


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0 and "8 rules found" in checked.stdout, checked.stderr
    tested = promtool("test", "rules", Path(__file__).parent / "alerts_test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_server_under_load_stuck_and_gone(
    tiny_model: TinyModel, tmp_path: Path, stalled: threading.Event
) -> None:
    rules = hasty(ALERTS.read_text())
    names = {alert["alert"] for alert in json.loads(rules)["groups"][0]["rules"]}
    with contextlib.ExitStack() as server:
        url = server.enter_context(serving(tiny_model(), stalled))
        with scraping(url, rules, tmp_path) as prometheus:
            prometheus.wait(lambda: prometheus.query("up") == [1, 1])
            prometheus.wait(lambda: prometheus.rules() == dict.fromkeys(names, "ok"))
            # The rules may have been looked at before the first scrape, when no model was seen.
            prometheus.wait(lambda: prometheus.firing() == set())
            with load(url):
                prometheus.wait(lambda: prometheus.firing() == UNDER_LOAD)
                check_dashboard(prometheus)
                check_lint(url)
                check_both_spellings(prometheus)
                old = r"A request has waited \S+ for replica 0 of tiny\."
                prometheus.wait(lambda: re.fullmatch(old, prometheus.summary("OctavoQueueOld")))
                stalled.set()
                try:
                    prometheus.wait(lambda: "OctavoNoSteps" in prometheus.firing())
                    assert max(prometheus.query("octavo:step_age_seconds")) > 1
                finally:
                    stalled.clear()
            prometheus.wait(lambda: prometheus.firing() == set())
            server.close()
            prometheus.wait(lambda: prometheus.firing() == {"OctavoModelDown"})


def check_dashboard(prometheus: Prometheus) -> None:
    """Every expression gives a figure. Swaps, copies and ages of blocks take a moment to come."""
    asked = list(panels())
    assert len(asked) > 35

    def without() -> list[tuple[str, str]]:
        return [(title, expr) for title, expr in asked if not prometheus.query(expr)]

    prometheus.wait(lambda: not without())
    shown = promtool("query", "instant", prometheus.url, asked[0][1])
    assert shown.returncode == 0 and 'model_name="tiny"' in shown.stdout


def check_lint(url: str) -> None:
    """Nothing that promtool minds but vLLM's colons, and its name of a histogram."""
    linted = promtool("check", "metrics", stdin=httpx.get(f"{url}/metrics").text)
    minded = {line for line in linted.stderr.splitlines() if not line.endswith("contain ':'")}
    allowed = 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'
    assert linted.returncode in (0, 3) and minded <= {allowed}, minded


def check_both_spellings(prometheus: Prometheus) -> None:
    for name in ("num_requests_running", "time_to_first_token_seconds_count"):
        [vllm] = prometheus.query(f'vllm:{name}{{replica="0"}}')
        [ray] = prometheus.query(f'ray_vllm_{name}{{ReplicaId="0"}}')
        assert vllm > 0 and ray > 0
