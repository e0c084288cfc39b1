"""Plain HTTP calls of the API and what is expected of every answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx

from tests.cluster.serving import MODEL

HELLO = [{"role": "user", "content": "Hello"}]
Connect = Callable[..., AbstractContextManager[httpx.Client]]


def data_of(response: httpx.Response) -> list[Any]:
    """The JSON of each event, without its name; `[DONE]` as the text it is."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [event.partition("data: ")[2] for event in response.text.split("\n\n") if event]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"model": MODEL, "prompt": "Say", **fields})


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **fields})


def error_of(response: httpx.Response, status: int, param: str | None = None) -> str:
    """The message of an error in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    message: str = error["message"]
    return message


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()
