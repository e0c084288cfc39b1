"""Calls of tools over HTTP, streamed and not, against scripted engines."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from octavo.scheduler.request import Finish
from tests.cluster.calls import HELLO, Connect, chat, data_of, error_of, eventually
from tests.cluster.scripted import HANG, TOKENIZER, ScriptedEngine, says
from tests.cluster.serving import MODEL
from tests.cluster.talks import (
    ADD,
    AUTO,
    CALL,
    CITY,
    PARIS,
    TALKER,
    TOOLS,
    WEATHER,
    answered,
    calls_of,
    joined,
)


def prompt_of(engine: ScriptedEngine) -> str:
    return TALKER.decode(engine.seen[-1].prompt)


def test_a_call_is_an_answer(connected: Connect) -> None:
    engine = ScriptedEngine(says(CALL), max_model_len=900)
    with connected(engine, **AUTO) as http:
        answer = chat(http, tools=TOOLS).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (made,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert made["id"].startswith("call_") and made["type"] == "function"
    assert made["function"] == {"name": "get_weather", "arguments": PARIS}
    assert answer["usage"]["completion_tokens"] == len(TALKER.encode(CALL)) + 1
    assert engine.seen[0].sampling.stop_token_ids == (1,)
    bare = {"name": "add", "description": "", "parameters": ANY}
    told = [WEATHER, {"type": "function", "function": bare}]
    assert prompt_of(engine).startswith(json.dumps(told, ensure_ascii=False) + "\nuser: Hello")


ANY = {"type": "object", "properties": {}}


def test_a_stream_has_a_head_for_each_call_and_its_arguments_as_they_come(
    connected: Connect,
) -> None:
    text = f"Wait.\n{CALL}\n{CALL}"
    with connected(ScriptedEngine(says(text), max_model_len=900), **AUTO) as http:
        *chunks, _ = data_of(chat(http, tools=TOOLS, stream=True))
    first, *middle, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    content = "".join(choice["delta"].get("content", "") for choice in middle)
    assert content == "Wait.", "what stands in front of a call is not content"
    calls = [choice["delta"]["tool_calls"] for choice in middle if "tool_calls" in choice["delta"]]
    assert {len(each) for each in calls} == {1}
    heads = [call for (call,) in calls if "id" in call]
    assert [head["index"] for head in heads] == [0, 1]
    assert len({head["id"] for head in heads}) == 2
    for head in heads:
        assert head["type"] == "function" and head["function"]["name"] == "get_weather"
        parts = [call for (call,) in calls if call["index"] == head["index"]]
        assert "".join(part["function"]["arguments"] for part in parts) == PARIS
        assert len(parts) > 5, "not in one go"
        assert all(set(part) == {"index", "function"} for part in parts[1:])


TEXTS = {
    "call": CALL,
    "two": f"{CALL}\n{CALL}\n",
    "around": f" One. \n{CALL} Two. {CALL}\n\nThree. ",
    "none": "I do not know.\n\n",
    "space": " \n",
    "looks like one": '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>\n',
    "unfinished": CALL[:-25],
    "not JSON": '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>',
    "empty": "",
}


@pytest.mark.parametrize("step", [1, 4, 100])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_stream_joins_to_the_whole_answer(connected: Connect, text: str, step: int) -> None:
    engine = ScriptedEngine(says(text, step=step), max_model_len=900)
    with connected(engine, **AUTO) as http:
        whole = answered(http, tools=TOOLS, n=2)
        streamed = joined(http, tools=TOOLS, n=2)
    for (message, reason), (other, other_reason) in zip(whole, streamed, strict=True):
        assert reason == other_reason == ("tool_calls" if calls_of(message) else "stop")
        assert calls_of(message) == calls_of(other)
        assert message.content == other.content
        assert message.content is None or calls_of(message) or message.content == text
    ids = [call.id for message, _ in whole for call in message.tool_calls or ()]
    assert len(set(ids)) == len(ids)


def test_text_around_calls_keeps_the_space_within_it(connected: Connect) -> None:
    engine = ScriptedEngine(says(TEXTS["around"]), max_model_len=900)
    with connected(engine, **AUTO) as http:
        ((message, _),) = answered(http, tools=TOOLS)
    assert message.content == " One. \nTwo. Three."


def test_a_call_that_runs_out_of_room_ends_by_length(connected: Connect) -> None:
    engine = ScriptedEngine(says(CALL, Finish.LENGTH), max_model_len=900)
    with connected(engine, **AUTO) as http:
        room = len(TALKER.encode(CALL[: CALL.index("Paris")]))
        ((message, reason),) = answered(http, tools=TOOLS, max_tokens=room)
    assert reason == "length"
    ((name, arguments),) = calls_of(message)
    assert name == "get_weather" and PARIS.startswith(arguments) and arguments


def test_one_call_ends_the_answer_where_only_one_may_be(connected: Connect) -> None:
    engine = ScriptedEngine(
        lambda request: [*says(f"{CALL}\n{CALL}")(request)[:-1], HANG], max_model_len=900
    )
    with connected(engine, **AUTO) as http:
        for read in (answered, joined):
            ((message, reason),) = read(http, tools=TOOLS, parallel_tool_calls=False)
            assert calls_of(message) == [("get_weather", PARIS)] and reason == "tool_calls"
            assert eventually(lambda: not engine.live)
        usage = chat(http, tools=TOOLS, parallel_tool_calls=False).json()["usage"]
    assert usage["completion_tokens"] <= len(TALKER.encode(CALL)) + 1


def test_without_tools_or_with_none_of_them_all_is_text(connected: Connect) -> None:
    engine = ScriptedEngine(says(CALL), max_model_len=900)
    cases: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
    with connected(engine, **AUTO) as http:
        for fields in cases:
            ((message, reason),) = answered(http, **fields)
            assert (message.content, reason) == (CALL, "stop")
            assert prompt_of(engine) == "user: Hello\nassistant: "


def test_stop_strings_do_not_cut_arguments(connected: Connect) -> None:
    text = f"One, two.\n{CALL}\nthree END four"
    engine = ScriptedEngine(says(text), max_model_len=900)
    with connected(engine, **AUTO) as http:
        for read in (answered, joined):
            ((message, reason),) = read(http, tools=TOOLS, stop=["Paris", "END", "_call"])
            assert calls_of(message) == [("get_weather", PARIS)] and reason == "tool_calls"
            assert message.content == "One, two.\nthree"
            ((message, reason),) = read(http, tools=TOOLS, stop=["two"])
            assert (message.content, reason, calls_of(message)) == ("One, ", "stop", [])


def test_a_stop_string_does_not_reach_across_a_call(connected: Connect) -> None:
    engine = ScriptedEngine(says(f"EN{CALL}D"), max_model_len=900)
    with connected(engine, **AUTO) as http:
        for read in (answered, joined):
            ((message, _),) = read(http, tools=TOOLS, stop="END")
            assert (message.content, len(calls_of(message))) == ("END", 1)


def test_logprobs_are_those_of_every_token(connected: Connect) -> None:
    engine = ScriptedEngine(says(f"So:\n{CALL}\n"), max_model_len=900)
    with connected(engine, **AUTO) as http:
        fields: dict[str, Any] = {"tools": TOOLS, "logprobs": True}
        whole = chat(http, **fields).json()["choices"][0]["logprobs"]["content"]
        *chunks, _ = data_of(chat(http, stream=True, **fields))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole
    assert bytes(b for entry in whole for b in entry["bytes"]).decode() == f"So:\n{CALL}\n</s>"


def test_the_openai_client_calls_a_tool_and_tells_the_result(connected: Connect) -> None:
    engine = ScriptedEngine(says(f"I look.\n{CALL}"), max_model_len=900)
    with connected(engine, **AUTO) as http:
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0)
        messages: list[Any] = [*HELLO]
        tools: Any = TOOLS
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        message = answer.choices[0].message
        assert message.tool_calls
        made = message.tool_calls[0]
        assert made.type == "function" and json.loads(made.function.arguments)["city"]
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert streamed.finish_reason == "tool_calls"
        assert streamed.message.content == message.content == "I look."
        assert streamed.message.tool_calls
        assert streamed.message.tool_calls[0].function.arguments == made.function.arguments
        messages.append(message)
        messages.append({"role": "tool", "tool_call_id": made.id, "content": "It does."})
        client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        client.close()
    said = prompt_of(engine).partition("\n")[2]
    assert said == (
        f"user: Hello\nassistant: I look.[get_weather {PARIS}]\n"
        "tool get_weather: It does.\nassistant: "
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "maybe"}, "tool_choice", "maybe"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "no function"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice",
            "'no'",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": []},
                },
            },
            "tool_choice",
            "none of the tools",
        ),
        ({"tools": [ADD, ADD]}, "tools[1].function.name", "'add'"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", ""),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search'"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]", "'custom'"),
        ({"tools": [ADD] * 1025}, "tools", "1025"),
        ({"functions": [{"name": "x"}]}, "functions", "not supported"),
    ],
)
def test_tools_that_cannot_be(
    connected: Connect, fields: dict[str, Any], param: str, words: str
) -> None:
    with connected(ScriptedEngine(says("x"), max_model_len=900), **AUTO) as http:
        assert words in error_of(chat(http, **fields), 400, param)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = CITY
    for _ in range(levels):
        schema = {"not": schema}
    return {"type": "function", "function": {"name": "x", "parameters": schema}}


def test_schemas_nest_as_deep_as_is_allowed(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x"), max_model_len=9000), **AUTO) as http:
        assert chat(http, tools=[nested(97)]).status_code == 200
        refused = chat(http, tools=[nested(98)])
        assert "100 levels" in error_of(refused, 400, "tools[0].function.parameters")


def test_tools_that_a_server_is_not_set_up_for(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), TALKER) as http:
        assert "--enable-auto-tool-choice" in error_of(chat(http, tools=TOOLS), 400, "tools")
        error_of(chat(http, tools=TOOLS, tool_choice="auto"), 400, "tool_choice")
    with connected(ScriptedEngine(says("x")), **AUTO | {"tokenizer": TOKENIZER}) as http:
        assert "no place for tools" in error_of(chat(http, tools=TOOLS), 400, "tools")


def test_only_some_of_the_tools_may_be_allowed(connected: Connect) -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "add"}}],
        },
    }
    engine = ScriptedEngine(says(CALL), max_model_len=900)
    with connected(engine, **AUTO) as http:
        ((message, reason),) = answered(http, tools=TOOLS, tool_choice=choice)
    assert (message.content, reason) == (CALL, "stop")
    assert "get_weather" in prompt_of(engine), "the model knows all, so that prefixes are shared"


def test_earlier_turns_reach_the_template(connected: Connect) -> None:
    def past(name: str, arguments: str | None) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": "call_1", "type": "function", "function": function}

    calls = [past("add", '{"a": [1]}'), past("add", '{"a": '), past("add", None), past("x", "[1]")]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "tool_calls": calls, "reasoning_content": "Hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]},
        {"role": "function", "name": "add", "content": "3"},
    ]
    engine = ScriptedEngine(says("x"), max_model_len=900)
    with connected(engine, TALKER) as http:
        assert chat(http, messages=messages).status_code == 200
        for wrong, param in (
            ({"role": "user", "content": "x", "tool_calls": calls}, "messages[0].tool_calls"),
            (
                {"role": "assistant", "tool_calls": [{"type": "custom"}]},
                "messages[0].tool_calls[0]",
            ),
            ({"role": "assistant", "function_call": {"name": "x"}}, "messages[0].function_call"),
        ):
            error_of(chat(http, messages=[wrong]), 400, param)
    assert prompt_of(engine) == (
        'user: Hi\nassistant: (Hm)[add {"a": [1]}][add "{\\"a\\": "][add {}][x "[1]"]\n'
        "tool x: 2\ntool add: 3\nassistant: "
    )


def test_tokenize_counts_tools_as_a_chat_does(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"), max_model_len=900)
    with connected(engine, **AUTO) as http:
        body = {"messages": HELLO, "tools": TOOLS}
        counted = http.post("/tokenize", json=body).json()["count"]
        assert chat(http, tools=TOOLS).json()["usage"]["prompt_tokens"] == counted
