"""What may stand around a grammar: reasoning before it, and text around calls of strict tools."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from octavo.cluster.text.answer_reader import AnswerReader
from octavo.cluster.text.forced_calls import call_schema
from octavo.cluster.text.frames import call_frame, frame
from octavo.cluster.text.reasoning import ReasoningKind, ReasoningReader
from octavo.cluster.text.tokens import Tokenizer
from octavo.cluster.text.tool_calls import HermesCalls, Llama3Calls, ToolFormat
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.request import Request
from octavo.workers.grammar import compile_grammar
from tests.cluster.calls import Connect, chat, error_of
from tests.cluster.scripted import ScriptedEngine, says
from tests.cluster.talks import AUTO, CALL, CITY, TALKER, TEMPLATE, answered, calls_of, joined
from tests.cluster.text_models import BYTE_LEVEL, byte_level

VOCABULARY = BYTE_LEVEL.vocabulary()
ONE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "additionalProperties": False,
}
OBJECT = Grammar("json", json.dumps(ONE))
GOOD, BAD = '{"a": 1}', '{"a": 2}'
THINKING = {"chat_template_kwargs": {"thinking": True}}


@functools.cache
def compiled(grammar: Grammar) -> llguidance.LLMatcher:
    return compile_grammar(grammar, VOCABULARY)


def fits(grammar: Grammar, text: str) -> bool:
    """Whether the text is a whole sentence, whatever tokens it is written in."""
    matcher = compiled(grammar).deep_copy()
    tokens = [token for each in text for token in BYTE_LEVEL.encode(each)]
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize("answer", [OBJECT, Grammar("regex", r"\{.a.: 1\}")])
@pytest.mark.parametrize(
    ("kind", "prompt", "text", "right"),
    [
        ("deepseek_r1", "x", f"hm {BAD} <think </thin</think>\n\n{GOOD}", True),
        ("deepseek_r1", "x", GOOD, False),
        ("deepseek_r1", "x", f"</think>{GOOD}", True),
        ("deepseek_r1", "x", f"hm</think>{BAD}", False),
        ("deepseek_r1", "x", f"hm</think>{GOOD}</think>", False),
        ("deepseek_r1", "x", f"hm</think>hm</think>{GOOD}", False),
        ("deepseek_r1", "x<think></think>", GOOD, True),
        ("deepseek_r1", "x<think></think>", f"hm</think>{GOOD}", False),
        ("qwen3", "x", GOOD, True),
        ("qwen3", "x", f"<think>\nhm\n</think>\n\n{GOOD}", True),
        ("qwen3", "x", f"<think>{GOOD}", False),
        ("qwen3", "x", f"hm</think>{GOOD}", False),
        ("qwen3", "x<think>\n", f"hm</think>{GOOD}", True),
        ("qwen3", "x<think>\n", GOOD, False),
    ],
)
def test_reasoning_comes_before_what_is_held_to_a_form(
    kind: ReasoningKind, prompt: str, text: str, right: bool, answer: Grammar
) -> None:
    framed = Grammar(answer.kind, answer.text, frame(None, kind, prompt))
    assert fits(framed, text) == right
    if right:
        reader = ReasoningReader(kind, prompt)
        pieces = [*reader.feed(text), *reader.flush()]
        assert "".join(piece.text for piece in pieces if piece.kind == "content") == GOOD


def test_a_grammar_of_rules_is_framed_too() -> None:
    framed = Grammar("lark", 'start: "yes" | "no"', frame(None, "qwen3", "x"))
    assert fits(framed, "no") and fits(framed, "<think>yes</think>no")
    assert not fits(framed, "maybe") and not fits(framed, "<think>yes")


@pytest.mark.parametrize(
    ("format", "key", "fragments"),
    [
        ("hermes", "arguments", ["<tool_call>", "<tool_call>\n", "</tool_call>", "<tool_cal"]),
        ("llama3_json", "parameters", ["<|python_tag|>", ";", "; ", "["]),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_whatever_is_let_through_calls_strict_tools_rightly(
    format: ToolFormat, key: str, fragments: list[str], single: bool
) -> None:
    """And what is no call is left as it is."""
    tools: dict[str, Any] = {"f": ONE, "g": None}
    body, wanted_key = call_frame(format, single=single) or ("", "")
    assert wanted_key == key
    schema = call_schema(tools, key)
    grammar = Grammar("json", json.dumps(schema), frame(body, "qwen3", "x"))
    calls = [("f", GOOD), ("f", BAD), ("g", BAD), ("h", GOOD)]
    parts = [f'{{"name": "{name}", "{key}": {given}}}' for name, given in calls]
    parts += [*fragments, "text", "<think>", "</think>", "\n"]
    if format == "hermes":
        parts += [f"<tool_call>{part}</tool_call>" for part in parts[:4]]
    draw = random.Random(5)
    seen = {"calls": 0, "texts": 0, "thoughts": 0}
    for _ in range(1500):
        text = "".join(draw.choices(parts, k=draw.randint(0, 4)))
        if not fits(grammar, text):
            continue
        kind = {"hermes": HermesCalls, "llama3_json": Llama3Calls}[format]
        reader = AnswerReader(ReasoningReader("qwen3", "x"), kind(tools, single=single))
        pieces = [*reader.feed(text), *reader.flush()]
        names = [piece.text for piece in pieces if piece.kind == "call"]
        given = [piece.text for piece in pieces if piece.kind == "arguments"]
        for name, arguments in zip(names, given, strict=True):
            jsonschema.validate(json.loads(arguments), tools[name] or {})
        assert single is False or len(names) < 2
        seen["calls"] += len(names)
        seen["texts"] += not names
        seen["thoughts"] += any(piece.kind == "reasoning" for piece in pieces)
    assert min(seen.values()) > 5, seen


def grammar_of(request: Request) -> Grammar:
    assert request.sampling.grammar is not None
    return request.sampling.grammar


def test_calls_of_strict_tools_are_held_to_their_schemas(connected: Connect) -> None:
    function = {"name": "get_weather", "parameters": {**CITY, "additionalProperties": False}}
    strict = {"type": "function", "function": {**function, "strict": True}}
    loose = {"type": "function", "function": {"name": "add", "parameters": ONE}}
    engine = ScriptedEngine(says(CALL), max_model_len=900)
    with connected(engine, **AUTO) as http:
        for read in (answered, joined):
            ((message, reason),) = read(http, tools=[strict, loose])
            assert calls_of(message) and reason == "tool_calls"
        grammar = grammar_of(engine.seen[-1])
        assert fits(grammar, "No call") and fits(grammar, CALL.replace(", 雨", ""))
        assert fits(grammar, CALL.replace("get_weather", "add")), "it is not strict"
        assert not fits(grammar, CALL.replace("city", "town"))
        answered(http, tools=[loose])
        assert engine.seen[-1].sampling.grammar is None
        wrong = {"name": "x", "parameters": {"type": "nothing"}, "strict": True}
        error_of(chat(http, tools=[{"type": "function", "function": wrong}]), 400, "tools")
    with connected(engine, **AUTO | {"tool_call_parser": "pythonic"}) as http:
        answered(http, tools=[strict])
    assert engine.seen[-1].sampling.grammar is None


def test_an_answer_in_a_form_may_be_thought_over(connected: Connect) -> None:
    text = f"hm {BAD}</think>\n\n{GOOD}"
    engine = ScriptedEngine(says(text), max_model_len=900)
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ONE}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": ONE}}
    chosen = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}
    with connected(engine, **AUTO | {"reasoning_parser": "deepseek_r1"}) as http:
        for read in (answered, joined):
            ((message, _),) = read(http, **form, **THINKING)
            assert (message.reasoning_content, message.content) == (f"hm {BAD}", GOOD)
            assert fits(grammar_of(engine.seen[-1]), text)
            ((message, _),) = read(http, **chosen, **THINKING)
            assert (message.reasoning_content, calls_of(message)) == (f"hm {BAD}", [("f", GOOD)])
            assert fits(grammar_of(engine.seen[-1]), text)
        assert TALKER.decode(engine.seen[-1].prompt).endswith("<think>\n")


def test_markers_that_are_special_tokens_are_not_framed(connected: Connect) -> None:
    """A grammar is of text, and they are none: reasoning that the template has begun is ended."""
    backend = byte_level()
    backend.add_special_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    tokenizer = Tokenizer(backend, eos_ids=[1], chat_template=TEMPLATE)
    engine = ScriptedEngine(says(GOOD), max_model_len=900)
    settings = AUTO | {"reasoning_parser": "deepseek_r1", "tokenizer": tokenizer}
    with connected(engine, **settings) as http:
        form = {"response_format": {"type": "json_object"}}
        ((message, _),) = answered(http, **form, **THINKING)
        assert message.content == GOOD and not message.reasoning_content
        request = engine.seen[-1]
        ids = tokenizer.encode("<think>\n\n</think>\n\n", add_special_tokens=False)
        assert list(request.prompt[-len(ids) :]) == ids and grammar_of(request).frame == ""
        function = {"name": "f", "parameters": ONE, "strict": True}
        answered(http, tools=[{"type": "function", "function": function}])
    assert engine.seen[-1].sampling.grammar is None
