"""Calls of tools in a text: what is one, what is none, and that portions do not matter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.cluster.text.pieces import Reader
from octavo.cluster.text.tool_calls import HermesCalls, Llama3Calls
from tests.cluster.readings import CUTS, pieces_of, read, said

TOOLS = ("get_weather", "add", "wetter_für")
READERS = {"hermes": HermesCalls, "llama3_json": Llama3Calls}


def hermes() -> Reader:
    return HermesCalls(TOOLS)


def llama() -> Reader:
    return Llama3Calls(TOOLS)


def call(name: str, arguments: str) -> list[tuple[str, str]]:
    return [("call", name), ("arguments", arguments)]


PARIS = '{"city": "Paris"}'
ONE = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE, call("get_weather", PARIS)),
        (f"{ONE}\n{ONE}", call("get_weather", PARIS) * 2),
        (
            f"I look.\n{ONE}\nDone.",
            [("content", "I look.\n"), *call("get_weather", PARIS), ("content", "Done.")],
        ),
        (
            '<tool_call>{"arguments":{"a":[1,{}]},"name":"add"}</tool_call>',
            call("add", '{"a":[1,{}]}'),
        ),
        (
            '<tool_call>{"id":7,"name":"add","x":[{"}":"]"}],"parameters":{},"y":null}</tool_call>',
            call("add", "{}"),
        ),
        ('<tool_call>{"name":"add"}</tool_call>', call("add", "{}")),
        ('<tool_call>{"name":"add","arguments":null}</tool_call>', call("add", "{}")),
        (
            '<tool_call>{"name":"add","arguments":"{\\"a\\": 1}"}</tool_call>',
            call("add", '{"a": 1}'),
        ),
        ('<tool_call>{"name":"\\u0061dd","arguments":{}}</tool_call>', call("add", "{}")),
        (
            '<tool_call>{"name":"wetter_für","arguments":{"ort":"Köln 🌧"}}</tool_call>',
            call("wetter_für", '{"ort":"Köln 🌧"}'),
        ),
        # the markers mean nothing inside of a string
        (
            '<tool_call>{"name":"add","arguments":{"a":"</tool_call>\\"<tool_call>}"}}</tool_call>!',
            [*call("add", '{"a":"</tool_call>\\"<tool_call>}"}'), ("content", "!")],
        ),
        # cut off, or with brackets left open
        ('<tool_call>{"name":"add","arguments":{"a":"x', call("add", '{"a":"x')),
        ('<tool_call>{"name":"add","arguments":{"a":1}', call("add", '{"a":1}')),
        ('<tool_call>{"name":"add","arguments":{"a":1}}\n</tool_', call("add", '{"a":1}')),
        (
            '<tool_call>{"name":"add","arguments":{"a":1}</tool_call>x',
            [*call("add", '{"a":1}'), ("content", "x")],
        ),
        (
            '<tool_call>{"name":"add","arguments":{"a":1</tool_call>x',
            [*call("add", '{"a":1'), ("content", "x")],
        ),
        ('<tool_call>{"name":"add","arguments":{"a":<</tool_call>', call("add", '{"a":<')),
        # what is not JSON goes to the client as the model wrote it
        (
            '<tool_call>{"name":"add","arguments":{"a": True,}}</tool_call>',
            call("add", '{"a": True,}'),
        ),
        (
            '<tool_call>{"name":"add","arguments":{}}} and more</tool_call>',
            [*call("add", "{}"), ("content", "} and more</tool_call>")],
        ),
        (
            '<tool_call>{"name":"add","arguments":{},oops</tool_call>',
            [*call("add", "{}"), ("content", ",oops</tool_call>")],
        ),
    ],
)
def test_hermes_calls(text: str, expected: list[tuple[str, str]]) -> None:
    assert read(hermes, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain < text",
        "<tool_call>",
        "<tool_call>get_weather(Paris)</tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "no JSON"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        '<tool_call>{"arguments": {"a": oops}, "name": "add"}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": ["add"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": add, "arguments": {}}</tool_call>',
        "<tool_call>{'name': 'add', 'arguments': {}}</tool_call>",
        '<tool_call>{"name" "add"}</tool_call>',
        '<tool_call>{"name": "add" "arguments": {}}</tool_call>',
        '<tool_call>{"x": @, "name": "add"}</tool_call>',
        '<tool_call>{"na\\qme": 1}</tool_call>',
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "add"',
        '<tool_call>{"arguments": {"a": 1}, "na',
        '{"name": "add", "arguments": {}}',
        '```json\n{"name": "add", "arguments": {}}\n```',
        "</tool_call></think><tool_cal>",
    ],
)
def test_what_only_looks_like_a_hermes_call_stays_text(text: str) -> None:
    assert read(hermes, text) == ([("content", text)] if text else [])


def test_a_call_after_what_only_looked_like_one() -> None:
    for false in (
        "<tool_call>",
        "<<tool_call>{",
        '<tool_call>{"name": "unknown"',
        "<tool_call>{1}",
    ):
        assert read(hermes, false + ONE) == [("content", false), *call("get_weather", PARIS)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"name": "get_weather", "parameters": {PARIS}}}', call("get_weather", PARIS)),
        (
            f'\n<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
            call("get_weather", PARIS),
        ),
        ('{"type": "function", "name": "add", "arguments": {"a": "1"}}', call("add", '{"a": "1"}')),
        (
            '{"name":"add","parameters":{"a":1}}; {"name":"add","parameters":{"a":2}}',
            call("add", '{"a":1}') + call("add", '{"a":2}'),
        ),
        ('{"name":"add","parameters":{}}\n{"name":"add","parameters":{}}', call("add", "{}") * 2),
        (
            '{"name":"add","parameters":{}} is what I call.',
            [*call("add", "{}"), ("content", "is what I call.")],
        ),
        (
            '{"name":"add","parameters":{}};{"name":"unknown","parameters":{}}',
            [*call("add", "{}"), ("content", '{"name":"unknown","parameters":{}}')],
        ),
        ('{"name":"add","parameters":{"a"', call("add", '{"a"')),
        ('{"parameters":{},"name":"add"}', call("add", "{}")),
    ],
)
def test_llama_calls(text: str, expected: list[tuple[str, str]]) -> None:
    assert read(llama, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "I would call {}",
        'Call {"name": "add", "parameters": {}}',
        '{"name": "unknown", "parameters": {}}',
        '{"name": "add"}',
        '{"city": "Paris"}',
        "<|python_tag|>print(1)",
        "<|python",
        "<b>bold</b>",
        '[{"name": "add", "parameters": {}}]',
        ONE,
    ],
)
def test_what_only_looks_like_a_llama_call_stays_text(text: str) -> None:
    assert read(llama, text) == ([("content", text)] if text else [])


@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
def test_a_single_call_ends_the_answer(make: Any) -> None:
    text = f'{{"name": "add", "parameters": {PARIS}}}'
    if make is HermesCalls:
        text = f"<tool_call>{text}</tool_call>"
    reader = make(TOOLS, single=True)
    assert said(reader.feed(text[:-1])) == call("add", PARIS)
    assert not reader.finished
    assert said(reader.feed(text[-1:] + text + " more")) == [] and reader.finished
    assert reader.flush() == []


@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
def test_arguments_go_out_as_they_come(make: Any) -> None:
    """And everything else as soon as it is certain."""
    reader = make(TOOLS)
    header = '{"name": "add", "parameters": '
    assert reader.feed("<tool_call>" + header if make is HermesCalls else header) == []
    for character in '{"a": [1, "<b>"':
        assert [piece.text for piece in reader.feed(character)][-1:] == [character]
    plain = make(TOOLS)
    assert [piece.text for character in "So a <b" for piece in plain.feed(character)] == [
        *"So a ",
        *(["<b"] if make is HermesCalls else "<b"),
    ]


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "<tool",
        "</",
        "<",
        '"',
        "\\",
        "{",
        "}",
        "[",
    ),
    *("]", ",", ":", ";", "\n", " ", "null", "1e3", "x", "你", '"a"', '"name"', '"add"', "<think>"),
    *(
        '{"name": "add", "arguments": ',
        '"parameters": {',
        '"arguments": "{}"',
        ONE,
        ONE[:40],
        ONE[11:],
    ),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
@settings(deadline=None, max_examples=150)
@given(text=TEXTS, cuts=CUTS)
@example(text="<tool_call" + ONE, cuts=[1] * 20)
def test_portions_do_not_matter(make: Any, single: bool, text: str, cuts: list[int]) -> None:
    whole = pieces_of(make(TOOLS, single=single), text, [])
    cut = pieces_of(make(TOOLS, single=single), text, cuts)
    assert said(cut) == said(whole)
    for pieces in (whole, cut):
        assert "".join(piece.raw for piece in pieces) == text
    names = [piece.text for piece in whole if piece.kind == "call"]
    assert set(names) <= set(TOOLS) and (not single or len(names) <= 1)
    if not names:
        assert said(whole) == ([("content", text)] if text else [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(FRAGMENTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6) | st.sampled_from(FRAGMENTS), JSON, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
@settings(deadline=None, max_examples=60)
@given(calls=CALLS, cuts=CUTS, swapped=st.booleans(), ascii=st.booleans(), space=st.booleans())
def test_every_call_that_is_written_is_read(
    make: Any, calls: list[Any], cuts: list[int], swapped: bool, ascii: bool, space: bool
) -> None:
    written = []
    for name, arguments in calls:
        items = [("name", name), ("arguments", arguments)]
        text = json.dumps(
            dict(reversed(items) if swapped else items),
            ensure_ascii=ascii,
            separators=None if space else (",", ":"),
        )
        written.append(f"<tool_call>{text}</tool_call>" if make is HermesCalls else text)
    heard = said(pieces_of(make(TOOLS), ("\n" if space else "").join(written), cuts))
    assert [text for kind, text in heard if kind == "call"] == [name for name, _ in calls]
    assert [json.loads(text) for kind, text in heard if kind == "arguments"] == [
        arguments for _, arguments in calls
    ]
    assert len(heard) == 2 * len(calls), "and nothing else"


def test_reading_takes_time_in_proportion_to_the_text() -> None:
    """Counted in characters read: what is no call is read once more at most, however nested."""

    class Counted(HermesCalls):
        taken = 0

        def _next(self) -> Any:
            self.taken += 1
            return super()._next()

    for unit in ('<tool_call>{"x": "', '<tool_call>{"name', "<tool_call>", "<"):
        text = unit * 300
        reader = Counted(TOOLS)
        assert "".join(piece.raw for piece in reader.feed(text) + reader.flush()) == text
        assert len(text) <= reader.taken < 3 * len(text)
