"""Two replicas of two ranks each, and processes of theirs that are killed under load: no client
notices, and a new replica comes by itself. The last test stops the server."""

from __future__ import annotations

import os
import signal
import time

import httpx
import openai
import pytest

from tests.e2e.answers import ADAPTER, CALLS, MODEL, Asking, assert_same, stream
from tests.e2e.server import (
    BACK_SECONDS,
    RUNNING,
    healthy,
    replaced,
    wait_for,
)

RESUMED = "octavo:requests_resumed_total"
VICTIMS = {
    "worker": "WorkerActor",
    "scheduler": "SchedulerActor",
    "replica": "ServeReplica:octavo:Replica",
}


@pytest.fixture(autouse=True)
def calm(server):
    """Each test begins with two idle replicas."""
    wait_for(lambda: healthy(server), BACK_SECONDS, "two idle replicas")


@pytest.fixture(scope="module")
def calls(client):
    """The calls, one for an adapter, and one that ends at a string far into a greedy answer, which
    is held back piece by piece as it comes."""
    text = "".join(
        choice.text
        for chunk in stream(client, "to find a stop string", CALLS["greedy"])
        for choice in chunk.choices
    )
    stop = text[-40:-20]
    assert text.index(stop) > len(text) / 2
    adapted = {**CALLS["greedy"], "model": ADAPTER}
    return {**CALLS, "adapter": adapted, "stop": {**CALLS["greedy"], "stop": [stop]}}


@pytest.fixture(scope="module")
def undisturbed(client, calls):
    answers = dict(Asking(client, "undisturbed", calls).answers(60))
    assert answers["adapter"].texts != answers["greedy"].texts
    return answers


def kill(server, kind, sign=signal.SIGKILL):
    """One process of this kind: the one that was started first."""
    victim = min(server.actors(VICTIMS[kind]), key=lambda process: process.create_time())
    os.kill(victim.pid, sign)
    return victim


def compare(asking, undisturbed, seconds=60):
    for name, answer in asking.answers(seconds):
        assert_same(answer, undisturbed[name], name)


@pytest.mark.parametrize("kind", VICTIMS)
def test_case_41_no_stream_notices_that_a_process_was_killed(
    server, client, calls, undisturbed, kind
):
    """All requests carry the same id, which is no concern of the engine's."""
    before = server.gauge(RESUMED)
    workers = {process.pid for process in server.workers()}
    asking = Asking(client, kind, calls, copies=2)
    victim = kill(server, kind)
    compare(asking, undisturbed)
    assert client.completions.create(model=MODEL, prompt="It serves on", max_tokens=4).choices
    wait_for(lambda: replaced(server, set(before)), BACK_SECONDS, "a new replica")
    now = server.gauge(RESUMED)
    [survivor] = set(before) & set(now)
    assert now[survivor] > before[survivor], "some streams were moved"
    after = set()

    def whole():
        after.clear()
        after.update(process.pid for process in server.workers())
        return len(after) == 4

    wait_for(whole, 10, "two groups of two ranks")
    assert len(after & workers) == 2, "the whole group is new, the other is not"
    if kind == "worker":
        [said] = [line for line in server.log.splitlines() if f"(pid {victim.pid} on " in line]
        assert "rank" in said and "died" in said and "a new group takes over" in said
    assert "Traceback" not in server.log


def test_case_43_a_replica_that_came_later_gets_its_share(server, client):
    """And case 42: many prompts in one call are spread over the replicas."""
    generated = "vllm:generation_tokens_total"
    before = server.gauge(generated)
    prompts = [f"{number} leaves" for number in range(16)]
    client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=20, extra_body={"ignore_eos": True}
    )

    def gained():
        values = [value - before[name] for name, value in server.gauge(generated).items()]
        return values if sum(values) == 16 * 20 else None

    values = wait_for(gained, 10, "a report of all tokens")
    assert len(values) == 2 and min(values) >= 20


def test_a_rank_that_is_stopped_is_noticed_and_no_stream_fails(server, client, calls, undisturbed):
    before = set(server.gauge(RUNNING))
    asking = Asking(client, "stopped", calls)
    victim = kill(server, "worker", signal.SIGSTOP)
    stopped = time.monotonic()
    compare(asking, undisturbed)
    assert time.monotonic() - stopped < 45
    [said] = [line for line in server.log.splitlines() if f"(pid {victim.pid} on " in line]
    assert "rank" in said and "no heartbeat" in said
    wait_for(lambda: replaced(server, before), BACK_SECONDS, "a new group")
    wait_for(lambda: not victim.is_running(), 10, "the end of the stopped process")


def test_streams_wait_where_no_replica_is_left(server, client, calls, undisturbed):
    before = set(server.gauge(RUNNING))
    asking = Asking(client, "none left", calls)
    for victim in server.actors(VICTIMS["scheduler"]):
        os.kill(victim.pid, signal.SIGKILL)
    wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 503, 20, "a fault")
    compare(asking, undisturbed)
    wait_for(lambda: replaced(server, before, 2), BACK_SECONDS, "two new replicas")


def test_a_client_that_leaves_while_its_request_is_moved_frees_everything(server, calls):
    before = set(server.gauge(RUNNING))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = stream(client, "leaving", calls["samples"])
        for _ in range(6):
            next(chunks)
        for victim in server.actors(VICTIMS["scheduler"]):
            os.kill(victim.pid, signal.SIGKILL)
    wait_for(lambda: replaced(server, before, 2), BACK_SECONDS, "two new, idle replicas")
    assert list(server.gauge(RESUMED).values()) == [0.0, 0.0]


def test_ctrl_c_leaves_nothing(server):
    assert len(server.family()) > 8
    code = server.interrupt()
    assert code == 0, server.log
    wait_for(lambda: not server.survivors(), 20, "the end of all processes")
    assert server.log.rstrip().endswith("stopped")
    assert "Traceback" not in server.log
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
