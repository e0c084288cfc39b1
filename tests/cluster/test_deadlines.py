"""Requests that take too long, clients that send too slowly, and what is left of both."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from octavo.cluster.api.app import RequestLimits
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.request import Request
from tests.cluster.calls import Connect, chat, complete, data_of, error_of, eventually
from tests.cluster.scripted import HANG, ScriptedEngine, Step, says
from tests.cluster.serving import settings_for

BOUND = 0.3


def begins(request: Request) -> list[Step]:
    return [*says("Hello")(request)[:1], HANG]


def test_a_whole_answer_that_takes_too_long_is_given_up(connected: Connect) -> None:
    engine = ScriptedEngine(begins)
    with connected(engine, request_timeout=BOUND) as http:
        for answer in (complete(http, n=2), chat(http)):
            assert f"{BOUND} seconds" in error_of(answer, 504)
            assert answer.json()["error"]["code"] == "request_timeout"
        assert eventually(lambda: not engine.live)


def test_a_stream_that_takes_too_long_ends_with_an_error(connected: Connect) -> None:
    engine = ScriptedEngine(begins)
    with connected(engine, request_timeout=BOUND) as http:
        for answer in (complete(http, stream=True), chat(http, stream=True)):
            *chunks, last = data_of(answer)
            assert chunks and last["error"]["code"] == "request_timeout"
        assert eventually(lambda: not engine.live)


def test_a_stream_that_waits_too_long_for_its_turn_is_refused(connected: Connect) -> None:
    engine = ScriptedEngine(lambda _: [HANG])
    with connected(engine, request_timeout=BOUND, submit_grace=60.0) as http:
        error_of(complete(http, stream=True), 504)
        assert eventually(lambda: not engine.live)


def test_what_ends_in_time_notices_nothing(connected: Connect) -> None:
    with connected(ScriptedEngine(says("Hi")), request_timeout=20.0) as http:
        assert complete(http).json()["choices"][0]["text"] == "Hi"
        assert data_of(chat(http, stream=True))[-1] == "[DONE]"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_bound_that_is_none_is_refused(timeout: float, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"above 0, got {timeout}"):
        settings_for(tmp_path, request_timeout=timeout)


def test_a_body_that_does_not_come_is_not_waited_for(connected: Connect) -> None:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: octavo\r\nContent-Length: 1000\r\n\r\n"
        '{"prompt": "x"'
    )
    limits = RequestLimits(body_seconds=BOUND)
    with connected(ScriptedEngine(says("x")), limits=limits) as http:
        address = (http.base_url.host, http.base_url.port or 0)
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(head.encode())
            began = time.monotonic()
            answer = client.recv(65536)
            assert time.monotonic() - began >= BOUND * 0.9
        assert answer.startswith(b"HTTP/1.1 408 ") and b"x-request-id" in answer.lower()
        assert complete(http).status_code == 200
