"""Calls that a request wants made, by a tiny model that would never make them of itself."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.cluster.calls import Connect, chat, error_of
from tests.cluster.case_server import Server
from tests.cluster.scripted import ScriptedEngine, says
from tests.cluster.talks import AUTO, CALL, TALKER, TOOLS, answered, calls_of, joined

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "雨"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
FORECAST = {"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
STOP = {"type": "function", "function": {"name": "stop", "parameters": NOTHING}}
SCHEMAS = {"forecast": SCHEMA, "stop": NOTHING}
NAMED = {"type": "function", "function": {"name": "forecast"}}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_is_made_and_is_right(server: Server, choice: Any, seed: int) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hi"}],
        **{"tools": [FORECAST, STOP], "tool_choice": choice, "parallel_tool_calls": False},
        **{"seed": seed, "temperature": 1.0, "max_tokens": 300},
    }
    ((message, reason),) = answered(server.http, **fields)
    assert reason == "tool_calls" and message.content is None
    ((name, arguments),) = calls_of(message)
    assert choice == "required" or name == "forecast"
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert [calls_of(each) for each, _ in joined(server.http, **fields)] == [[(name, arguments)]]


def test_reasoning_that_the_template_has_begun_is_ended(connected: Connect) -> None:
    """Where the server does not know how to read it, a grammar leaves no room for it."""
    engine = ScriptedEngine(says('{"city": "Paris"}'), max_model_len=900)
    fields = {"chat_template_kwargs": {"thinking": True}}
    with connected(engine, **AUTO) as http:
        choice = {"type": "function", "function": {"name": "get_weather"}}
        ((message, _),) = answered(http, tools=TOOLS, tool_choice=choice, **fields)
        assert calls_of(message) == [("get_weather", '{"city": "Paris"}')]
        assert TALKER.decode(engine.seen[-1].prompt).endswith("<think>\n\n</think>\n\n")
        ((message, _),) = answered(http, response_format={"type": "json_object"}, **fields)
        assert message.content == '{"city": "Paris"}' and not message.reasoning_content
        assert TALKER.decode(engine.seen[-1].prompt).endswith("<think>\n\n</think>\n\n")


def test_a_call_and_another_form_exclude_each_other(connected: Connect) -> None:
    with connected(ScriptedEngine(says(CALL), max_model_len=900), **AUTO) as http:
        fields = {"tools": TOOLS, "response_format": {"type": "json_object"}}
        error_of(chat(http, tool_choice="required", **fields), 400, "tool_choice")
        assert chat(http, **fields).status_code == 200


def test_a_schema_that_is_none_is_the_tools_fault(connected: Connect) -> None:
    wrong = {"type": "function", "function": {"name": "x", "parameters": {"type": "nothing"}}}
    with connected(ScriptedEngine(says("x"), max_model_len=900), **AUTO) as http:
        error_of(chat(http, tools=[wrong], tool_choice="required"), 400, "tools")


def test_responses_are_held_to_the_same(server: Server) -> None:
    def respond(**fields: Any) -> Any:
        body = {"input": "Hi", "seed": 1, "max_output_tokens": 300, **fields}
        answer = server.post("responses", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    tool = {"type": "function", **FORECAST["function"]}  # type: ignore[dict-item]
    chosen = {"type": "function", "name": "forecast"}
    (call,) = respond(tools=[tool], tool_choice=chosen)["output"]
    assert call["type"] == "function_call"
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    format = {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}
    answer = respond(text={"format": format})
    jsonschema.validate(json.loads(answer["output"][0]["content"][0]["text"]), SCHEMA)
    assert answer["text"]["format"] == format
    (item,) = respond(text={"format": {"type": "json_object"}}, seed=2)["output"]
    assert item["content"][0]["text"].lstrip().startswith("{")
