"""What only an admin may ask, and that it is off unless asked for; who may share a cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from octavo.cluster.client import EngineClient
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import SchedulerConfig
from octavo.workers.null import NullWorker
from tests.cluster.calls import Connect, error_of
from tests.cluster.scripted import ScriptedEngine, says
from tests.cluster.serving import serve_engine, settings_for
from tests.conftest import TinyModel

ADMIN = {"Authorization": "Bearer admin"}
ROUTES = [("POST", "/reset_prefix_cache"), ("GET", "/debug/blocks")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_an_admin_key_they_are_off_and_say_how_to_turn_them_on(
    connected: Connect, method: str, path: str
) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine, api_keys=("user",)) as http:
        for headers in ({}, ADMIN, {"Authorization": "Bearer user"}):
            message = error_of(http.request(method, path, headers=headers), 404)
            assert f"{method} {path}" in message and "--admin-api-key" in message
        assert path not in http.get("/openapi.json").json()["paths"]
        assert path not in http.get("/").json()["endpoints"]
    assert engine.resets == 0


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_only_the_admin_key_opens_them(connected: Connect, method: str, path: str) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine, api_keys=("user",), admin_api_key="admin") as http:
        wrong = ["Bearer user", "Bearer", "Basic admin", "Bearer administrator", "admin"]
        for headers in ({}, *({"Authorization": each} for each in wrong)):
            refused = http.request(method, path, headers=headers)
            assert "admin key" in error_of(refused, 401)
            assert refused.headers["www-authenticate"] == "Bearer"
        assert engine.resets == 0
        assert http.request(method, path, headers=ADMIN).status_code == 200
        assert http.get("/v1/models", headers=ADMIN).status_code == 401, "it is no user's key"
        assert path in http.get("/").json()["endpoints"]


def test_every_replica_is_reset_and_shown(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    engine.documents = [b'{"blocks":[1]}', b'{"blocks":[2, 3]}']
    with connected(engine, admin_api_key="admin") as http:
        answer = http.post("/reset_prefix_cache", headers=ADMIN)
        assert answer.json() == {"reset": True, "replicas": 2}
        shown = http.get("/debug/blocks", headers=ADMIN)
        assert shown.headers["content-type"] == "application/json"
        assert shown.content == b'{"replicas":[{"blocks":[1]},{"blocks":[2, 3]}]}'
    assert engine.resets == 1


@pytest.fixture(scope="module")
def http(tiny_model: TinyModel) -> Any:
    """A server with two tenants and an admin, whose engine proves its block tables."""

    @asynccontextmanager
    async def open_engine() -> AsyncIterator[EngineClient]:
        workers = LocalWorkers(lambda: NullWorker(16, vocab_size=512, num_blocks=200))
        async with LocalEngine(workers, lambda _: SchedulerConfig(max_model_len=512)) as client:
            yield client

    path = tiny_model()
    settings = settings_for(path, api_keys=("key-a", "key-b"), admin_api_key="admin")
    with serve_engine(open_engine, settings) as url, httpx.Client(base_url=url) as client:
        yield client


def cached(http: httpx.Client, key: str, first: int, salt: str | None = None) -> int:
    """Prompt tokens that the cache had of a prompt of 100 tokens that begins with `first`."""
    body = {"prompt": [first, *[7] * 99], "max_tokens": 1, "cache_salt": salt}
    answer = http.post(
        "/v1/completions", json=body, headers={"Authorization": f"Bearer key-{key}"}
    ).json()
    hits: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return hits


def test_two_keys_never_share_whatever_their_salts(http: httpx.Client) -> None:
    for salt in (None, "s"):
        assert cached(http, "a", 1, salt) == 0
        assert cached(http, "a", 1, salt) == 96
    for salt in (None, "s"):
        assert cached(http, "b", 1, salt) == 0
        assert cached(http, "b", 1, salt) == 96
    assert cached(http, "a", 1, "other") == 0


def test_a_reset_forgets_all_tenants_content(http: httpx.Client) -> None:
    assert cached(http, "a", 2) == 0 and cached(http, "b", 2) == 0
    assert cached(http, "a", 2) == cached(http, "b", 2) == 96
    answer = http.post("/reset_prefix_cache", headers=ADMIN)
    assert answer.json() == {"reset": True, "replicas": 1}
    assert cached(http, "a", 2) == cached(http, "b", 2) == 0


def test_no_key_shows_in_what_is_told_of_the_blocks(http: httpx.Client) -> None:
    cached(http, "a", 3, "salty")
    shown = http.get("/debug/blocks", headers=ADMIN)
    assert len(json.loads(shown.content)["replicas"]) == 1
    for secret in ("key-a", "salty", "admin"):
        assert secret not in shown.text


def test_prompt_logprobs_read_no_hits(http: httpx.Client) -> None:
    assert cached(http, "a", 4) == 0
    body = {"prompt": [4, *[7] * 99], "max_tokens": 1, "prompt_logprobs": 0}
    answer = http.post(
        "/v1/completions", json=body, headers={"Authorization": "Bearer key-a"}
    ).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert cached(http, "a", 4) == 96
