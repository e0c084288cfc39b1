"""Several models behind one server: which of them answers, and what is told of all."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from octavo.cluster.api.app import FrontSettings, create_shared_app
from octavo.cluster.api.front import Front
from octavo.cluster.api.fronts import Fronts
from octavo.scheduler.errors import InvalidRequest
from tests.cluster.calls import chat, complete, error_of
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, says
from tests.cluster.serving import Switch

ADMIN = {"Authorization": "Bearer admin"}


def front(engine: ScriptedEngine, *names: str) -> Front:
    return Front(engine, FrontSettings("", names, admin_api_key="admin"), TOKENIZER)


@pytest.fixture
def engines() -> tuple[ScriptedEngine, ScriptedEngine]:
    return ScriptedEngine(says("one")), ScriptedEngine(says("two"), max_model_len=100)


@pytest.fixture
def http(
    wire: tuple[Switch, str], engines: tuple[ScriptedEngine, ScriptedEngine]
) -> Iterator[httpx.Client]:
    switch, url = wire
    first, second = engines
    switch.app = create_shared_app([front(first, "a/first", "f"), front(second, "second")])
    with httpx.Client(base_url=url, timeout=20) as http:
        yield http


@pytest.mark.parametrize(("name", "text"), [("a/first", "one"), ("f", "one"), ("second", "two")])
def test_the_models_name_chooses(http: httpx.Client, name: str, text: str) -> None:
    answer = complete(http, model=name).json()
    assert (answer["model"], answer["choices"][0]["text"]) == (name, text)
    assert chat(http, model=name).json()["choices"][0]["message"]["content"] == text


def test_an_unknown_name_is_told_all_that_there_are(http: httpx.Client) -> None:
    message = error_of(complete(http, model="third"), 404, "model")
    assert "'a/first', 'f', 'second'" in message


def test_with_several_models_one_must_be_named(http: httpx.Client) -> None:
    message = error_of(complete(http, model=None), 400, "model")
    assert "a/first, f, second" in message


def test_all_are_listed_with_their_own_lengths(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()["data"]
    lengths = {each["id"]: each["max_model_len"] for each in listed}
    assert lengths == {"a/first": 200, "f": 200, "second": 100}
    assert http.get("/v1/models/second").json()["max_model_len"] == 100
    assert http.get("/").json()["models"] == ["a/first", "f", "second"]
    tokens = {"prompt": "x", "model": "second"}
    assert http.post("/tokenize", json=tokens).json()["max_model_len"] == 100


def test_metrics_tell_of_each_models_replicas(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    for name in ("a/first", "second"):
        labels = f'engine="0",model_name="{name}",replica="0"'
        assert f"vllm:num_requests_running{{{labels}}} 0.0" in text


def test_one_model_that_is_down_leaves_the_server_up(
    http: httpx.Client, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    engines[1].reason = "no replica is up"
    answer = http.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "faults": {"second": "no replica is up"}}
    engines[0].reason = "rank 1 is gone"
    assert error_of(http.get("/health"), 503) == "rank 1 is gone; no replica is up"


def test_an_admin_reaches_every_model(
    http: httpx.Client, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    engines[0].documents = [b"1", b"2"]
    assert http.post("/reset_prefix_cache", headers=ADMIN).json()["replicas"] == 3
    assert [engine.resets for engine in engines] == [1, 1]
    shown = http.get("/debug/blocks", headers=ADMIN)
    assert shown.content == b'{"replicas":[1,2,{"blocks":[]}]}'


def test_two_models_of_one_name_are_refused() -> None:
    engine = ScriptedEngine(says("x"))
    with pytest.raises(InvalidRequest, match="two models are called 'a'"):
        Fronts((front(engine, "a"), front(engine, "b", "a")))
