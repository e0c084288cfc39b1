"""`/v1/responses` as the `openai` client uses it, against scripted engines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest

from octavo.cluster.api.responses_answers import ResponseAnswer
from octavo.cluster.failover import Failover
from octavo.scheduler.request import Finish
from tests.cluster.calls import Connect, error_of, eventually
from tests.cluster.scripted import HANG, ScriptedEngine, mortal, says
from tests.cluster.serving import MODEL
from tests.cluster.talks import AUTO, CALL, CITY, PARIS, TALKER

THINKS = "<think>\nA sheet.\n</think>\n\n"
READS: dict[str, Any] = {**AUTO, "reasoning_parser": "qwen3"}
TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "description": "It rains?", "parameters": CITY},
    {"type": "function", "name": "add", "parameters": None, "strict": False},
]


def engine_that(text: str, finish: Finish = Finish.STOP, step: int = 1) -> ScriptedEngine:
    return ScriptedEngine(says(text, finish, step), max_model_len=900)


@contextlib.contextmanager
def client_of(http: httpx.Client) -> Iterator[openai.OpenAI]:
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0)
    with contextlib.closing(client):
        yield client


def respond(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"model": MODEL, "input": "Hello", **fields})


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names and numbers are checked."""
    assert answer.status_code == 200, answer.text
    events = []
    for number, block in enumerate(filter(None, answer.text.split("\n\n"))):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        events.append(event)
    return events


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    """Without ids and times, which differ between any two answers."""
    bare = {key: answer[key] for key in answer if key not in ("id", "created_at", "completed_at")}
    own = ("id", "call_id")
    bare["output"] = [{k: v for k, v in item.items() if k not in own} for item in bare["output"]]
    return bare


def test_the_openai_client_gets_a_text(connected: Connect) -> None:
    engine = engine_that("Eight leaves.")
    with connected(engine, **READS) as http, client_of(http) as client:
        answer = client.responses.create(
            model=MODEL,
            input="How many leaves?",
            instructions="Be brief.",
            temperature=0.5,
            metadata={"a": "b"},
        )
    assert answer.output_text == "Eight leaves." and answer.status == "completed"
    assert answer.id.startswith("resp_") and answer.object == "response"
    assert (answer.temperature, answer.metadata, answer.instructions) == (
        0.5,
        {"a": "b"},
        "Be brief.",
    )
    prompt = "system: Be brief.\nuser: How many leaves?\nassistant: "
    assert TALKER.decode(engine.seen[0].prompt) == prompt
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(TALKER.encode(prompt))
    assert answer.usage.output_tokens == len(TALKER.encode("Eight leaves.")) + 1
    assert answer.usage.input_tokens_details.cached_tokens == 4


def test_the_openai_client_calls_a_tool_and_tells_the_result(connected: Connect) -> None:
    engine = engine_that(f"{THINKS}I look.\n{CALL}")
    with connected(engine, **READS) as http, client_of(http) as client:
        items: list[Any] = [{"role": "user", "content": "Rain?"}]
        answer = client.responses.create(model=MODEL, input=items, tools=TOOLS)
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
        begins = [(item.id or "").partition("_")[0] for item in answer.output]  # as OpenAI's do
        assert begins == ["rs", "msg", "fc"]
        call = answer.output[-1]
        assert call.type == "function_call" and call.name == "get_weather"
        assert call.call_id.startswith("call_")
        assert json.loads(call.arguments) == json.loads(PARIS)
        items += answer.output
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "It does"})
        client.responses.create(model=MODEL, input=items, tools=TOOLS)
    told = TALKER.decode(engine.seen[1].prompt).partition("\n")[2]
    assert told == (
        f"user: Rain?\nassistant: I look.(A sheet.)[get_weather {PARIS}]\n"
        "tool get_weather: It does\nassistant: "
    )


def test_the_openai_client_follows_a_stream(connected: Connect) -> None:
    engine = engine_that(f"{THINKS}I look.\n{CALL}")
    with connected(engine, **READS) as http, client_of(http) as client:
        strict: list[Any] = [tool | {"strict": True} for tool in TOOLS[:1]]
        with client.responses.stream(model=MODEL, input="Rain?", tools=strict) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert final.output_text == "I look."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"


TEXTS = {
    "text": "Eight leaves, 雨.",
    "reasoning": f"{THINKS}Eight leaves.",
    "call": CALL,
    "all": f"{THINKS}I look.\n{CALL}\n{CALL}\nDone.",
    "nothing": "",
}
ITEMS = {"message": "output_text", "reasoning": "reasoning_text"}


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_stream_tells_of_each_item_from_its_start_to_its_end(
    connected: Connect, text: str, step: int, finish: Finish
) -> None:
    with connected(engine_that(text, finish, step), **READS) as http:
        whole = respond(http, tools=TOOLS)
        events = events_of(respond(http, tools=TOOLS, stream=True))
    first, second, *middle, last = events
    assert [first["type"], second["type"]] == ["response.created", "response.in_progress"]
    answer = last["response"]
    assert last["type"] == f"response.{answer['status']}"
    cut = finish is Finish.LENGTH
    assert answer["status"] == ("incomplete" if cut else "completed")
    assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    assert without_names(answer) == without_names(whole.json())
    msgspec.json.decode(whole.content, type=ResponseAnswer)
    assert {event["output_index"] for event in middle} == set(range(len(answer["output"])))
    for index, item in enumerate(answer["output"]):
        own = [event for event in middle if event["output_index"] == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["status"] == "in_progress"
        assert own[-1]["type"] == "response.output_item.done" and own[-1]["item"] == item
        assert all(event["item_id"] == item["id"] for event in own[1:-1])
        joined = "".join(event.get("delta", "") for event in own)
        if item["type"] == "function_call":
            assert joined == item["arguments"] == own[-2]["arguments"] == PARIS
        else:
            (part,) = item["content"]
            assert part["type"] == ITEMS[item["type"]] and part["text"] == joined
            assert own[1]["type"] == "response.content_part.added"
            assert own[-2]["type"] == "response.content_part.done" and own[-2]["part"] == part
            assert own[-3]["type"] == f"response.{part['type']}.done" and own[-3]["text"] == joined


def test_length_tools_and_choices_mean_what_they_do_in_a_chat(connected: Connect) -> None:
    engine = engine_that(CALL)
    with connected(engine, **READS) as http:
        answer = respond(http, tools=TOOLS, tool_choice="none", max_output_tokens=5).json()
        assert answer["output"][0]["content"][0]["text"].startswith("<tool_call>"[:5])
        assert answer["max_output_tokens"] == engine.seen[0].sampling.max_tokens == 5
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "add"}]}
        answer = respond(http, tools=TOOLS, tool_choice=allowed).json()
        assert [item["type"] for item in answer["output"]] == ["message"]
        two = ScriptedEngine(says(CALL + CALL), max_model_len=900)
    with connected(two, **READS) as http:
        answer = respond(http, tools=TOOLS, parallel_tool_calls=False).json()
        assert [item["type"] for item in answer["output"]] == ["function_call"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, None, ""),
        ({"input": []}, "input", "must not be empty"),
        ({"input": None}, "input", "must not be empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_reference"),
        ({"input": [{"role": "user"}]}, "input[0]", "content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "'robot'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]", "image"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]", "call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0]", "output"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"background": True}, "background", "waited for"),
        ({"truncation": "auto"}, "truncation", "less of it"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "max_output_tokens = 1000000"),
        ({"max_output_tokens": -1}, "max_output_tokens", "max_output_tokens must"),
        ({"input": "x" * 10**6}, "input", "input has 1000018"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "name"),
        ({"tools": TOOLS[:1] * 2}, "tools[1].name", "get_weather"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice", "no"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice", "no function"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "text.format"),
        ({"temperature": 7}, "temperature", "between 0 and 2"),
        ({"metadata": {"a": 1}}, "metadata", "metadata"),
    ],
)
def test_what_is_refused_is_named_as_it_was_sent(
    connected: Connect, fields: dict[str, Any], param: str | None, words: str
) -> None:
    with connected(engine_that("x"), **READS) as http:
        if param is None:
            assert respond(http, **fields).status_code == 200
        else:
            assert words in error_of(respond(http, **fields), 400, param)


def test_what_means_nothing_here_is_ignored(connected: Connect) -> None:
    fields = {
        **{"store": True, "include": ["reasoning.encrypted_content"], "service_tier": "auto"},
        **{"previous_response_id": None, "truncation": "disabled", "background": False},
        **{"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        **{"prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3, "new": 1},
    }
    with connected(engine_that("x"), **READS) as http:
        answer = respond(http, **fields).json()
    assert answer["store"] is False and answer["reasoning"]["effort"] == "low"


def test_items_of_one_answer_become_one_message(connected: Connect) -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    def text(role: str, *parts: str) -> dict[str, Any]:
        content = [
            {"type": f"{'out' if role == 'assistant' else 'in'}put_text", "text": part}
            for part in parts
        ]
        return {"type": "message", "role": role, "content": content}

    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    items = [
        *(text("developer", "Be brief."), text("user", "One", "two")),
        *(thought, text("assistant", "A"), call("add"), call("get_weather")),
        *(
            {
                "type": "function_call_output",
                "call_id": "add",
                "output": [{"type": "input_text", "text": "3"}],
            },
            call("add"),
            text("assistant", "B"),
        ),
    ]
    engine = engine_that("x")
    with connected(engine, **READS) as http:
        assert respond(http, input=items).status_code == 200
    assert TALKER.decode(engine.seen[0].prompt) == (
        "system: Be brief.\nuser: One\ntwo\nassistant: A(Hm)[add {}][get_weather {}]\ntool add: 3\n"
        "assistant: [add {}]\nassistant: B\nassistant: "
    )


def test_a_replica_that_dies_changes_nothing(connected: Connect) -> None:
    text = TEXTS["all"]
    answers = []
    for script in (says(text), mortal(says(text), 30, 7)):
        engine = Failover(ScriptedEngine(script, max_model_len=900), patience=0.3)
        with connected(engine, **READS) as http:
            *events, last = events_of(respond(http, tools=TOOLS, stream=True))
        answers.append(([event.get("delta") for event in events], without_names(last["response"])))
    assert answers[0] == answers[1]


def test_a_stream_that_breaks_ends_with_an_error_event(connected: Connect) -> None:
    fault = RuntimeError("the reason, which is ours")
    engine = ScriptedEngine(lambda request: [*says("one two")(request)[:4], fault])
    with connected(engine, TALKER) as http:
        *events, last = events_of(respond(http, stream=True))
    assert last["type"] == "error" and last["code"] == "internal_error"
    assert "the reason" not in last["message"] and set(last) == {
        *("type", "sequence_number", "code", "message", "param")
    }
    assert any(event["type"] == "response.output_text.delta" for event in events)


def test_a_client_that_hangs_up_ends_the_work(connected: Connect) -> None:
    engine = ScriptedEngine(lambda request: [*says("one")(request)[:1], HANG])
    body = {"input": "x", "stream": True}
    with connected(engine, TALKER) as http:
        with http.stream("POST", "/v1/responses", json=body) as answer:
            next(answer.iter_lines())
        assert eventually(lambda: bool(engine.seen) and not engine.live)
