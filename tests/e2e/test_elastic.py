"""Replicas that come and go under load, as the file says or as the load does: no client notices.

Two models in one cluster: `steady` has as many replicas as the file says, `elastic` as many as it
needs, and none at rest. The tests go on where the ones before them stopped.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest
import yaml

from octavo.cluster.deployments import IMPORT_PATH
from tests.e2e.answers import CALLS, Answer, assert_same, stream
from tests.e2e.cluster import Cluster, free_port
from tests.e2e.server import RUNNING, gauge, wait_for

RESUMED = "octavo:requests_resumed_total"
GENERATED = "vllm:generation_tokens_total"
WAIT_SECONDS = 60  # longer than any of it takes, even where others use the machine
STEADY = {"model": "steady"}
ELASTIC = {"model": "elastic", "temperature": 0, "prompt": "A leaf has two pages, and a sheet"}


class Deployed:
    """A cluster that serves what the file said last."""

    def __init__(self, cluster, folder, model):
        common = {"model": model, "dtype": "float32", "num_threads": 1}
        common |= {"kv_cache_memory_bytes": "16MiB"}
        steady = {**common, "served_model_name": "steady", "num_replicas": 2, "drain_timeout": 60}
        elastic = {**common, "served_model_name": "elastic", "max_num_seqs": 4}
        elastic["autoscaling"] = {
            **{"min_replicas": 0, "max_replicas": 2, "upscale_delay_s": 0.5},
            **{"downscale_delay_s": 1, "downscale_to_zero_delay_s": 3},
        }
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.models = [steady, elastic]
        self._cluster = cluster
        self._file = folder / "serve.yaml"

    def deploy(self, **changes):
        """What is changed, of `steady`."""
        self.models = copy.deepcopy(self.models)
        self.models[0] |= changes
        application = {"name": "m", "import_path": IMPORT_PATH, "args": {"models": self.models}}
        http = {"host": "127.0.0.1", "port": self.port}
        self._file.write_text(yaml.safe_dump({"http_options": http, "applications": [application]}))
        done = self._cluster.octavo("deploy", str(self._file))
        assert done.returncode == 0, done.stderr
        return done.stderr

    def replicas(self, model, right, describe):
        """Waits until the names of the replicas that are up are right, and returns them."""
        [names] = wait_for(
            lambda: [names for names in [set(gauge(self.url, RUNNING, model))] if right(names)],
            WAIT_SECONDS,
            describe,
        )
        return names

    def some(self, model, count):
        """The names of so many replicas, once so many are up."""
        return self.replicas(model, lambda up: len(up) == count, f"{count} replicas of {model}")


@pytest.fixture(scope="module")
def deployed(tiny_model, tmp_path_factory):
    cluster = Cluster("")
    try:
        deployed = Deployed(cluster, tmp_path_factory.mktemp("elastic"), str(tiny_model()))
        deployed.told = deployed.deploy()
        yield deployed
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def client(deployed):
    with openai.OpenAI(base_url=f"{deployed.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answer(client, salt, fields):
    whole = Answer()
    for chunk in stream(client, salt, fields):
        whole.take(chunk)
    return whole


CALLS_OF_STEADY = {name: {**CALLS[name], **STEADY} for name in ("greedy", "seeded", "samples")}


@pytest.fixture(scope="module")
def undisturbed(deployed, client):
    return {name: answer(client, "undisturbed", call) for name, call in CALLS_OF_STEADY.items()}


@contextmanager
def load(client, salt, calls, expected=None, copies=1):
    """Streams, one after another in several threads for each of `calls`, until the context ends.
    All of a call's answers must be the same, or as `expected`. Begins when each thread has had its
    first answer."""
    end, begun = threading.Event(), threading.Semaphore(0)
    right = dict(expected or {})

    def work(number, name):
        count = 0
        while not end.is_set():
            got = answer(client, f"{salt} {number} {count}", calls[name])
            assert_same(got, right.setdefault(name, got), name)
            count += 1
            begun.release()
        return count

    with ThreadPoolExecutor(copies * len(calls)) as pool:
        working = [pool.submit(work, n, name) for n, name in enumerate(copies * list(calls))]
        try:
            for _ in working:
                assert begun.acquire(timeout=WAIT_SECONDS)
            yield
        finally:
            end.set()
        assert min(each.result(WAIT_SECONDS) for each in working) > 0


def test_a_model_may_have_no_replica_at_rest(deployed):
    assert "elastic: 0 of 0 replica(s) run" in deployed.told
    assert "does not answer" not in deployed.told
    assert httpx.get(f"{deployed.url}/health").json() == {"status": "ok"}
    deployed.some("steady", 2)
    assert not gauge(deployed.url, RUNNING, "elastic")


def test_a_request_waits_while_a_replica_starts_for_it(deployed, client):
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(answer, client, f"wake {n}", ELASTIC) for n in range(3)]
        texts = {each.result(WAIT_SECONDS).texts[0] for each in asked}
    assert len(texts) == 1
    deployed.some("elastic", 1)


def test_more_replicas_come_while_much_waits_and_go_when_nothing_does(deployed, client):
    """The last one too."""
    with load(client, "much", {"elastic": ELASTIC}, copies=12):
        deployed.some("elastic", 2)
        wait_for(
            lambda: sum(map(bool, gauge(deployed.url, GENERATED, "elastic").values())) == 2,
            WAIT_SECONDS,
            "a share for the later one (case 43)",
        )
    deployed.some("elastic", 0)
    assert httpx.get(f"{deployed.url}/health").json() == {"status": "ok"}


def test_an_update_replaces_the_replicas_of_that_model_alone_and_no_stream_fails(
    deployed, client, undisturbed
):
    expected = {**undisturbed, "elastic": answer(client, "awake", ELASTIC)}
    before = deployed.some("steady", 2)
    with load(client, "updated", {**CALLS_OF_STEADY, "elastic": ELASTIC}, expected):
        awake = deployed.some("elastic", 1)
        deployed.deploy(max_num_seqs=64)
        assert deployed.some("elastic", 1) == awake, "that model did not change"
    # Serve says that a replica runs some time before the ingress hears of it.
    deployed.replicas("steady", lambda up: len(up) == 2 and not up & before, "two new replicas")


def test_a_replica_that_is_to_go_takes_nothing_new_and_finishes_what_it_has(
    deployed, client, undisturbed
):
    before = deployed.some("steady", 2)
    with load(client, "drained", CALLS_OF_STEADY, undisturbed):
        deployed.deploy(num_replicas=1)
        [left] = deployed.some("steady", 1)
    assert left in before, "a change of the number replaces nothing"
    assert gauge(deployed.url, RESUMED, "steady") == {left: 0.0}


def test_what_runs_longer_than_the_grace_goes_on_elsewhere_and_no_stream_fails(deployed, client):
    """Long prompts, short answers and a token a step: engines are what is waited for, and have work
    for seconds, however late Serve tells one to go and however busy the machine is."""

    def took_over(replica):
        return gauge(deployed.url, RESUMED, "steady").get(replica)

    old = deployed.replicas("steady", bool, "any replica")
    deployed.deploy(num_replicas=2, max_num_batched_tokens=1, drain_timeout=0.1)
    before = deployed.replicas("steady", lambda up: len(up) == 2 and not up & old, "two new ones")
    prompt = [3 + number * 7 % 250 for number in range(440)]
    calls = {
        name: {**CALLS_OF_STEADY[name], "prompt": prompt, "max_tokens": 30}
        for name in ("greedy", "seeded")
    }
    with load(client, "cut short", calls, copies=5):
        for _ in range(4):  # the one that goes may have nothing to do just then
            deployed.deploy(num_replicas=1)
            [left] = deployed.some("steady", 1)
            if took_over(left):
                break
            deployed.deploy(num_replicas=2)
            before |= deployed.some("steady", 2)
        else:
            pytest.fail("of the streams of four replicas that went, none goes on elsewhere")
        deployed.deploy(max_num_batched_tokens=2)
        [new] = deployed.replicas(
            "steady", lambda up: len(up) == 1 and not up & before, "a new one in its place"
        )
        wait_for(lambda: took_over(new), WAIT_SECONDS, "moved streams")
