"""What `/openapi.json` says is what happens: answers fit it, and bounds are where it has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.cluster.calls import Connect, chat, complete
from tests.cluster.scripted import ScriptedEngine, says

ADMIN = {"Authorization": "Bearer admin"}


@pytest.fixture
def http(connected: Connect) -> Iterator[httpx.Client]:
    with connected(ScriptedEngine(says("Hi")), admin_api_key="admin") as http:
        yield http


@pytest.fixture
def described(http: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = http.get("/openapi.json").json()
    return document


def fits(described: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """`$ref` leads to the whole document."""
    jsonschema.Draft202012Validator({**described, **schema}).validate(value)


def operation(described: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][path][method.lower()]
    return found


def test_every_answer_fits(http: httpx.Client, described: dict[str, Any]) -> None:
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x", "logprobs": 2, "prompt_logprobs": 0},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "x"}],
            "logprobs": True,
            "top_logprobs": 2,
        },
        "/v1/responses": {"input": "x"},
        "/tokenize": {"prompt": "x", "return_token_strs": True},
        "/detokenize": {"tokens": [5]},
    }
    paths = {"/v1/models/{name}": "/v1/models/alias"}
    for path, methods in described["paths"].items():
        for method in methods:
            where, body = paths.get(path, path), bodies.get(path)
            answer = http.request(method, where, json=body, headers=ADMIN)
            if path == "/debug/journal/sent":  # nothing was sent
                assert answer.status_code == 400
                default = operation(described, method, path)["responses"]["default"]["content"]
                fits(described, default["application/json"]["schema"], answer.json())
                continue
            assert answer.status_code == 200, (path, answer.text)
            kind = answer.headers["content-type"].partition(";")[0]
            content = operation(described, method, path)["responses"]["200"]["content"]
            if kind == "application/json":
                fits(described, content[kind]["schema"], answer.json())
            else:
                assert content[kind]["schema"] == {"type": "string"}
            if body is None:
                continue
            fits(described, _body(described, path), body)
            refused = http.post(where, json={**body, "model": 5})
            error = operation(described, "post", path)["responses"]["default"]["content"]
            fits(described, error["application/json"]["schema"], refused.json())
            if "text/event-stream" in content:
                events = http.post(where, json={**body, "stream": True, "prompt_logprobs": None})
                lines = [line for line in events.text.splitlines() if line.startswith("data: {")]
                assert lines
                events_of = content["text/event-stream"]["itemSchema"]["properties"]["data"]
                for line in lines:
                    event = json.loads(line.removeprefix("data: "))
                    chunk, _ = events_of["anyOf"][0]["contentSchema"]["anyOf"]
                    fits(described, chunk, event)


def _body(described: dict[str, Any], path: str) -> dict[str, Any]:
    content = operation(described, "post", path)["requestBody"]["content"]
    schema: dict[str, Any] = content["application/json"]["schema"]
    return schema


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_numbers_may_be_what_it_says_and_no_more(
    http: httpx.Client, described: dict[str, Any], path: str
) -> None:
    ask = complete if path == "/v1/completions" else chat
    needs: dict[str, dict[str, Any]] = {
        "top_logprobs": {"logprobs": True},
        "min_tokens": {"max_tokens": 16},
    }
    name = _body(described, path)["$ref"].rpartition("/")[2]
    checked = 0
    for field, schema in described["components"]["schemas"][name]["properties"].items():
        for kind in schema.get("anyOf", ()):
            for end, beyond in (("minimum", -1), ("maximum", 1)):
                if end in kind:
                    value, more = kind[end], needs.get(field, {})
                    assert ask(http, **{**more, field: value}).status_code == 200, (field, value)
                    wrong = ask(http, **{**more, field: value + beyond})
                    assert wrong.status_code == 400, (field, value + beyond)
                    assert wrong.json()["error"]["param"] == field
                    checked += 1
    assert checked >= 15


def test_it_says_where_a_key_is_needed(connected: Connect) -> None:
    for settings, keyed in (({}, False), ({"api_keys": ("k",)}, True)):
        with connected(ScriptedEngine(says("x")), admin_api_key="admin", **settings) as http:
            described = http.get("/openapi.json").json()
        assert set(described["components"]["securitySchemes"]) == {"apiKey", "adminKey"}
        for path, methods in described["paths"].items():
            for each in methods.values():
                if path == "/reset_prefix_cache" or path.startswith("/debug/"):
                    assert each["security"] == [{"adminKey": []}]
                elif keyed and path.startswith(("/v1/", "/tokenize", "/detokenize")):
                    assert each["security"] == [{"apiKey": []}]
                else:
                    assert "security" not in each
