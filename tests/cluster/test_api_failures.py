"""Errors, keys and hang-ups, against scripted engines."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from octavo.cluster.api.app import RequestLimits
from octavo.scheduler.errors import EngineDead, QueueFull, RequestFailed
from octavo.scheduler.request import Request
from tests.cluster.calls import Connect, chat, complete, data_of, error_of, eventually
from tests.cluster.scripted import HANG, ScriptedEngine, Step, says, until


def test_keys_are_asked_for_where_they_are_set(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), api_keys=("right", "other")) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            refused = http.get("/v1/models", headers=headers)
            assert "API key" in error_of(refused, 401)
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert http.post("/tokenize", headers=headers, json={}).status_code == 401
        for key in ("right", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert http.get("/v1/models", headers=headers).status_code == 200
        for open_path in ("/health", "/metrics", "/version"):
            assert http.get(open_path).status_code == 200


def test_unknown_models_paths_and_methods(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        refused = complete(http, model="gpt-4")
        assert "`gpt-4` does not exist" in error_of(refused, 404, "model")
        assert refused.json()["error"]["code"] == "model_not_found"
        error_of(http.get("/v1/nothing"), 404)
        error_of(http.put("/v1/completions"), 405)
        assert complete(http, model="alias").json()["model"] == "alias"


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_and_a_dead_engine_say_when_to_come_back(
    connected: Connect, stream: bool
) -> None:
    full = ScriptedEngine(lambda _: [QueueFull("17 requests are waiting", retry_after=3)])
    with connected(full) as http:
        refused = complete(http, stream=stream)
        assert "17 requests" in error_of(refused, 503)
        assert refused.headers["retry-after"] == "3"
    dead = ScriptedEngine(lambda _: [EngineDead("rank 3 on 10.0.0.9: SIGKILL")])
    with connected(dead) as http:
        refused = complete(http, stream=stream)
        assert "10.0.0.9" not in error_of(refused, 503)
        assert int(refused.headers["retry-after"]) > 0


def test_no_replica_is_a_503(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    engine.up = False
    with connected(engine) as http:
        error_of(complete(http), 503)
        assert http.get("/v1/models").status_code == 200


def test_health_tells_the_fault(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    engine.reason = "no step for 12 s"
    with connected(engine) as http:
        assert "no step for 12 s" in error_of(http.get("/health"), 503)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "error", [RequestFailed("secret inside"), ZeroDivisionError("secret inside")]
)
def test_a_fault_is_a_500_without_its_insides_and_is_logged_once(
    connected: Connect, error: Exception, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(ScriptedEngine(lambda _: [error])) as http, caplog.at_level(logging.INFO):
        refused = complete(http, stream=stream)
    message = error_of(refused, 500)
    assert refused.headers["x-request-id"] in message
    assert "secret" not in refused.text and "Error" not in message
    assert len([record for record in caplog.records if "octavo" in record.name]) == 1
    assert "secret inside" in caplog.text


def test_a_fault_within_a_stream_is_one_event_and_the_end(connected: Connect) -> None:
    def script(request: Request) -> list[Step]:
        return [*says("Hello world, how are you")(request)[:2], RequestFailed("boom")]

    with connected(ScriptedEngine(script)) as http:
        for answer in (complete(http, stream=True), chat(http, stream=True)):
            *chunks, last = data_of(answer)
            assert chunks
            assert set(last) == {"error"}
            assert set(last["error"]) == {"message", "type", "param", "code"}
            assert "boom" not in answer.text


def test_one_request_that_fails_ends_the_others(connected: Connect) -> None:
    def script(request: Request) -> list[Step]:
        return [RequestFailed("boom")] if request.id.endswith("-1") else [HANG]

    engine = ScriptedEngine(script)
    with connected(engine) as http:
        error_of(complete(http, prompt=["a", "b", "c"]), 500)
        assert eventually(lambda: not engine.live)


def test_the_request_id_is_echoed_and_ids_inside_are_unique(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        headers = {"X-Request-Id": "mine-1"}
        body = {"prompt": "x"}
        answers = [http.post("/v1/completions", json=body, headers=headers) for _ in range(2)]
        assert [answer.headers["x-request-id"] for answer in answers] == ["mine-1"] * 2
        assert answers[0].json()["id"] != answers[1].json()["id"]
        unfit = http.get("/version", headers={"X-Request-Id": "x" * 500})
        assert len(unfit.headers["x-request-id"]) == 32
    assert engine.seen[0].id != engine.seen[1].id


def test_a_body_that_is_too_large_is_refused(connected: Connect) -> None:
    limits = RequestLimits(body_bytes=1000)
    with connected(ScriptedEngine(says("x")), limits=limits) as http:
        assert "1000 bytes" in error_of(complete(http, prompt="x" * 1001), 413)
        assert complete(http).status_code == 200


def hang_up(http: httpx.Client, engine: ScriptedEngine, **fields: object) -> None:
    """A client that asks, and leaves when the engine has its request."""

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=http.base_url, timeout=20) as client:
            asking = client.post("/v1/completions", json={"prompt": "x", **fields})
            task = asyncio.create_task(asking)
            await until(lambda: engine.live)
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_the_engine_at_once(
    connected: Connect, stream: bool, n: int
) -> None:
    def script(request: Request) -> list[Step]:
        return [*says("Hello")(request)[:1], HANG]

    engine = ScriptedEngine(script)
    with connected(engine) as http:
        hang_up(http, engine, stream=stream, n=n)
        assert [request.sampling.n for request in engine.seen] == [n]
        assert eventually(lambda: not engine.live)
        assert http.get("/health").status_code == 200


def test_a_client_that_hangs_up_while_it_queues_frees_the_engine(connected: Connect) -> None:
    engine = ScriptedEngine(lambda _: [HANG])
    with connected(engine, submit_grace=60.0) as http:
        hang_up(http, engine, stream=True)
        assert eventually(lambda: not engine.live)
