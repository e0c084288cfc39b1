"""Calls of tools written as Python."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.cluster.text.pythonic_calls import DEEPEST, PythonicCalls
from tests.cluster.readings import CUTS, pieces_of, read, said
from tests.cluster.test_tool_calls import FRAGMENTS, JSON, TOOLS, call


def pythonic() -> PythonicCalls:
    return PythonicCalls(TOOLS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[get_weather(city="Paris")]', call("get_weather", '{"city": "Paris"}')),
        (" [add(a=1, b = -2.5e3,)]\n", call("add", '{"a": 1, "b": -2500.0}')),
        ("[add(), add(x=[1, 'a]', {'k': None}, {}, [],], y=True)]",
         call("add", "{}") + call("add", '{"x": [1, "a]", {"k": null}, {}, []], "y": true}')),
        ("[wetter_für(ort='Kö\\'ln\\n \"雨\"')]",
         call("wetter_für", '{"ort": "Kö\'ln\\n \\"雨\\""}')),
        ("[add(a=1)] is what I call [1]", [*call("add", '{"a": 1}'),
                                           ("content", "is what I call [1]")]),
        ("[add(a=1), unknown(b=2)]", [*call("add", '{"a": 1}'), ("content", " unknown(b=2)]")]),
        ("[add(a=1)", call("add", '{"a": 1}')),
        ("[add(a='\\q\\x41\\u00e4\\U0001f600\n\\\n\\t')]", call("add", '{"a": "\\\\qAä😀\\n\\t"}')),
    ],
)  # fmt: skip
def test_calls(text: str, expected: Any) -> None:
    assert read(pythonic, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[]", "[1, 2]", "[add]", "[add(]", "[add(1)]", "[add(a)]", "[add(a=)]"),
        *("[add(a=1 b=2)]", "[add(a=1, a=2)]", "[add(1a=2)]", "[add(a=b)]", "[add(a=b())]"),
        *("[add(a=1+)]", "[add(a=0x1)]", "[add(a=NaN)]", "[add(a={1: 2})]", "[add(a={'b' 2})]"),
        *("[add(a=(1, 2))]", "[add(a=1e999)]", "[add(a='\\ud800')]"),
        *("[unknown(a=1)]", "add(a=1)", "see [add(a=1)]", "[add(a=1", '[{"name": "add"}]'),
        "[add(a=" + "[" * DEEPEST + "[" * 2000,
        "[add(a=" + "9" * 5000 + ")]",
    ],
)
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    assert read(pythonic, text) == ([("content", text)] if text else [])


def test_a_single_call_ends_the_answer() -> None:
    reader = PythonicCalls(TOOLS, single=True)
    assert said(reader.feed("[add(a=1), add()] and more")) == call("add", '{"a": 1}')
    assert reader.finished and reader.flush() == []


ARGUMENTS = st.dictionaries(st.from_regex(r"\A[a-z_]{1,4}\Z"), JSON, max_size=3)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=3), CUTS)
def test_every_call_that_is_written_is_read(calls: list[Any], cuts: list[int]) -> None:
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    heard = said(pieces_of(pythonic(), f"[{', '.join(written)}]", cuts))
    assert [text for kind, text in heard if kind == "call"] == [name for name, _ in calls]
    assert [json.loads(text) for kind, text in heard if kind == "arguments"] == [
        arguments for _, arguments in calls
    ]


TEXTS = st.lists(
    st.sampled_from(
        ["[", "add(", "a=", "'x'", "1", ",", ")", "]", "{", "}", ": ", *FRAGMENTS[:20]]
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=150)
@given(TEXTS.map("".join), CUTS)
@example("[add(a=1),add(", [1] * 20)
def test_portions_do_not_matter(text: str, cuts: list[int]) -> None:
    whole, cut = pieces_of(pythonic(), text, []), pieces_of(pythonic(), text, cuts)
    assert said(cut) == said(whole)
    for pieces in (whole, cut):
        assert "".join(piece.raw for piece in pieces) == text
