"""Reasoning over HTTP, streamed and not, against scripted engines."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from octavo.cluster.failover import Failover
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Finish
from tests.cluster.calls import HELLO, Connect, chat, data_of
from tests.cluster.scripted import ScriptedEngine, mortal, says
from tests.cluster.serving import MODEL
from tests.cluster.talks import (
    AUTO,
    CALL,
    PARIS,
    TALKER,
    TEMPLATE,
    TOOLS,
    answered,
    calls_of,
    joined,
)
from tests.cluster.text_models import byte_level

THINKS = "<think>\nA sheet END, folded.\n</think>\n\nEight leaves END now"
QWEN: dict[str, Any] = {**AUTO, "reasoning_parser": "qwen3"}
R1: dict[str, Any] = {"tokenizer": TALKER, "reasoning_parser": "deepseek_r1"}


def tokens(text: str) -> int:
    return len(TALKER.encode(text))


def test_reasoning_is_a_field_of_its_own(connected: Connect) -> None:
    with connected(ScriptedEngine(says(THINKS)), **QWEN) as http:
        answer = chat(http).json()
        streamed = joined(http)
        plain = chat(http, stream=True)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "A sheet END, folded."
    assert message["content"] == "Eight leaves END now"
    assert (streamed[0][0].reasoning_content, streamed[0][0].content) == (
        message["reasoning_content"],
        message["content"],
    )
    usage = answer["usage"]
    assert usage["completion_tokens"] == tokens(THINKS) + 1
    reasoned = usage["completion_tokens_details"]["reasoning_tokens"]
    assert reasoned == tokens(THINKS[: THINKS.index("\n\nEight")])
    deltas = [chunk["choices"][0]["delta"] for chunk in data_of(plain)[:-1]]
    kinds = [name for delta in deltas for name in delta if name != "role" and delta[name]]
    assert set(kinds) == {"reasoning_content", "content"}
    assert kinds == sorted(kinds, reverse=True), "reasoning comes first"


def test_stop_strings_count_in_the_content_only(connected: Connect) -> None:
    with connected(ScriptedEngine(says(THINKS)), **QWEN) as http:
        for read in (answered, joined):
            ((message, reason),) = read(http, stop=["END", "\n\n"])
            assert (message.content, reason) == ("Eight leaves ", "stop")
            assert message.reasoning_content == "A sheet END, folded."


def test_without_a_parser_all_is_content(connected: Connect) -> None:
    with connected(ScriptedEngine(says(THINKS)), TALKER) as http:
        ((message, _),) = answered(http, stop="END")
    assert message.content == "<think>\nA sheet " and not message.reasoning_content


def test_the_prompt_says_whether_reasoning_has_begun(connected: Connect) -> None:
    begun = THINKS.removeprefix("<think>\n")
    with connected(ScriptedEngine(says(begun)), **QWEN) as http:
        fields = {"chat_template_kwargs": {"thinking": True}}
        assert answered(http, **fields) == joined(http, **fields)
        assert answered(http, **fields)[0][0].reasoning_content == "A sheet END, folded."
        ((message, _),) = answered(http)
        assert message.content == begun and not message.reasoning_content


def test_reasoning_that_does_not_end_leaves_no_content(connected: Connect) -> None:
    with connected(ScriptedEngine(says("Hm, hm", Finish.LENGTH)), **R1) as http:
        answer = chat(http, max_tokens=50)
        assert answered(http) == joined(http)
    choice = answer.json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "Hm, hm"
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    details = answer.json()["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == tokens("Hm, hm")


def test_tools_are_called_after_reasoning(connected: Connect) -> None:
    text = f"<think>{CALL}</think>\n\nI look.\n{CALL}"
    engine = ScriptedEngine(says(text), max_model_len=900)
    with connected(engine, **QWEN) as http:
        for read in (answered, joined):
            ((message, reason),) = read(http, tools=TOOLS)
            assert message.reasoning_content == CALL and message.content == "I look."
            assert calls_of(message) == [("get_weather", PARIS)] and reason == "tool_calls"


def test_markers_show_where_they_are_special_tokens(connected: Connect) -> None:
    backend = byte_level()
    backend.add_special_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<special>"])
    tokenizer = Tokenizer(backend, eos_ids=[1], chat_template=TEMPLATE)
    text = f"<think>a</think>b<special>{CALL}"
    script = says(text)  # the test's own vocabulary has no such tokens
    ids = tokenizer.encode(text)

    def special(request: Any) -> Any:
        events = script(request)[: len(ids)]
        for event, token in zip(events, ids, strict=True):
            assert not isinstance(event, str | Exception)
            event.tokens = [token]
        last = events[-1]
        assert not isinstance(last, str | Exception)
        last.finish = Finish.LENGTH
        return events

    engine = ScriptedEngine(special, max_model_len=900)
    with connected(engine, **QWEN | {"tokenizer": tokenizer}) as http:
        ((message, _),) = answered(http, tools=TOOLS)
    assert (message.reasoning_content, message.content) == ("a", "b")
    assert calls_of(message) == [("get_weather", PARIS)]


def test_the_openai_client_sees_reasoning(connected: Connect) -> None:
    with connected(ScriptedEngine(says(THINKS)), **QWEN) as http:
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0)
        messages: Any = HELLO
        answer = client.chat.completions.create(model=MODEL, messages=messages)
        assert answer.choices[0].message.model_extra == {
            "reasoning_content": "A sheet END, folded."
        }
        client.close()


@pytest.mark.parametrize("lives", [(1,), (9, 30), (40, 2, 50)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_replica_that_dies_changes_nothing(
    connected: Connect, lives: tuple[int, ...], stream: bool
) -> None:
    text = f"<think>Let me look END.</think>\n\nWait END{CALL}\nAnd {CALL}"
    fields = {"tools": TOOLS, "n": 2, "logprobs": True, "stop": ["And <"]}
    answers = []
    for script in (says(text), mortal(says(text), *lives)):
        engine = Failover(ScriptedEngine(script, max_model_len=900), patience=0.3)
        with connected(engine, **QWEN) as http:
            read = joined if stream else answered
            answers.append((read(http, **fields), chat(http, **fields).json()["usage"]))
    first, second = answers
    assert first[1] == second[1]
    assert [calls_of(message) for message, _ in first[0]] == [[("get_weather", PARIS)] * 2] * 2
    for (one, reason), (other, other_reason) in zip(first[0], second[0], strict=True):
        assert calls_of(one) == calls_of(other) and reason == other_reason
        assert (one.content, one.reasoning_content) == (other.content, other.reasoning_content)
