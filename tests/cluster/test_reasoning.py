"""Reasoning told apart from the answer, and calls that count in the answer alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cluster.text.answer_reader import AnswerReader
from octavo.cluster.text.reasoning import ReasoningReader
from octavo.cluster.text.tool_calls import HermesCalls, Llama3Calls
from tests.cluster.readings import CUTS, pieces_of, read, said
from tests.cluster.test_tool_calls import FRAGMENTS, ONE, PARIS, TOOLS, call

OPEN, CLOSED, PLAIN = "<|assistant|><think>\n", "a <think>\n\n</think>\n\n", "<|assistant|>"


@pytest.mark.parametrize(
    ("kind", "prompt", "text", "expected"),
    [
        ("qwen3", PLAIN, "<think>\nHm.\n</think>\n\nHi", [("reasoning", "Hm."), ("content", "Hi")]),
        ("qwen3", PLAIN, "\n <think>Hm", [("reasoning", "Hm")]),
        ("qwen3", PLAIN, "Hi <think>x</think>", [("content", "Hi <think>x</think>")]),
        ("qwen3", PLAIN, "  Hi ", [("content", "  Hi ")]),
        ("qwen3", PLAIN, "<thin", [("content", "<thin")]),
        ("qwen3", PLAIN, "<think>\n\n</think>\n\nHi", [("content", "Hi")]),
        ("qwen3", OPEN, "Hm.\n</think>\n\nHi", [("reasoning", "Hm."), ("content", "Hi")]),
        ("qwen3", CLOSED, "<think>Hi</think>", [("content", "<think>Hi</think>")]),
        ("deepseek_r1", PLAIN, "Hm. </think>Hi", [("reasoning", "Hm."), ("content", "Hi")]),
        ("deepseek_r1", OPEN, "Hm.</think>Hi", [("reasoning", "Hm."), ("content", "Hi")]),
        ("deepseek_r1", OPEN, "<think>Hm.</think>Hi", [("reasoning", "Hm."), ("content", "Hi")]),
        ("deepseek_r1", OPEN, "</think>Hi", [("content", "Hi")]),
        ("deepseek_r1", OPEN, "a\n\nb < c </thin", [("reasoning", "a\n\nb < c </thin")]),
        (
            "deepseek_r1",
            OPEN,
            "a<</think>b</think>c",
            [("reasoning", "a<"), ("content", "b</think>c")],
        ),
        ("deepseek_r1", CLOSED, "Hi", [("content", "Hi")]),
        ("deepseek_r1", OPEN, " ", [("reasoning", " ")]),
        ("deepseek_r1", OPEN, "", []),
    ],
)
def test_reasoning_is_told_apart(kind: Any, prompt: str, text: str, expected: Any) -> None:
    assert read(lambda: ReasoningReader(kind, prompt), text) == expected
    assert read(lambda: AnswerReader(ReasoningReader(kind, prompt), None), text) == expected


def test_calls_are_looked_for_in_the_content_only() -> None:
    def reader() -> AnswerReader:
        return AnswerReader(ReasoningReader("qwen3", PLAIN), HermesCalls(TOOLS))

    text = f"<think>{ONE}</think>\n{ONE}"
    assert read(reader, text) == [("reasoning", ONE), *call("get_weather", PARIS)]


def test_a_call_may_be_the_first_thing_after_the_reasoning() -> None:
    def reader() -> AnswerReader:
        return AnswerReader(ReasoningReader("deepseek_r1", OPEN), Llama3Calls(TOOLS))

    text = f'Hm.\n</think>\n{{"name": "add", "parameters": {PARIS}}}'
    assert read(reader, text) == [("reasoning", "Hm."), *call("add", PARIS)]


TEXTS = st.lists(st.sampled_from([*FRAGMENTS, "</think>", "</thi", "<think>\n"]), max_size=14)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["qwen3", "deepseek_r1"]),
    st.sampled_from([OPEN, CLOSED, PLAIN]),
    st.sampled_from([None, HermesCalls, Llama3Calls]),
    TEXTS.map("".join),
    CUTS,
)
def test_portions_do_not_matter(
    kind: Any, prompt: str, calls: Any, text: str, cuts: list[int]
) -> None:
    def reader() -> AnswerReader:
        return AnswerReader(ReasoningReader(kind, prompt), calls and calls(TOOLS))

    whole, cut = pieces_of(reader(), text, []), pieces_of(reader(), text, cuts)
    assert said(whole) == said(cut)
    for pieces in (whole, cut):
        assert "".join(piece.raw for piece in pieces) == text
    kinds = [kind for kind, _ in said(whole)]
    assert "reasoning" not in kinds[1:], "it comes first"
