"""The judge of the chaos: it must see what it is there to see."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.chaos.answers import Answer
from tests.chaos.questions import KINDS, draw

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def choice(text: str, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish, **more}


def scored(token: str, value: float) -> dict[str, Any]:
    top = [{token: value}]
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": top, "text_offset": [0]}


WHOLE = {"choices": [choice("a leaf", "length", logprobs=scored("a leaf", -0.5))], "usage": USAGE}
STREAM: list[dict[str, Any]] = [
    {"choices": [choice("a leaf", logprobs=scored("a leaf", -0.5001))], "usage": None},
    {"choices": [choice("", "length")], "usage": None},
    {"choices": [], "usage": USAGE},
]


def put_together(*pieces: dict[str, Any]) -> Answer:
    answer = Answer()
    for piece in pieces:
        answer.take(piece)
    return answer


def changed(path: str, value: Any) -> Answer:
    """The stream's answer with one thing in it that is not right."""
    pieces = copy.deepcopy(STREAM)
    place: Any = pieces
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in keys:
        place = place[key]
    place[last] = value
    return put_together(*pieces)


def test_a_stream_and_a_whole_answer_are_the_same() -> None:
    assert put_together(*STREAM).differs(put_together(WHOLE)) is None


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("0.choices.0.text", "a lead", "after 5 characters 'd' in place of 'f'"),
        ("0.choices.0.text", "a lea", "after 5 characters '' in place of 'f'"),
        ("0.choices.0.text", "a leaf.", "'.' in place of ''"),
        ("0.choices.0.index", 1, "choices"),
        ("1.choices.0.finish_reason", "stop", "ended by stop, not by length"),
        ("1.choices.0.finish_reason", None, "ended by None"),
        ("0.choices.0.logprobs.token_logprobs", [-0.6], "log-probability"),
        ("0.choices.0.logprobs.top_logprobs", [{"a leaf": -0.4}], "log-probability"),
        ("0.choices.0.logprobs.tokens", ["a lead"], "token 0"),
        ("0.choices.0.logprobs", None, "0 log-probabilities"),
        ("0.choices.0.finish_reason", "length", "goes on after its end"),
        ("2.usage.completion_tokens", 4, "usage"),
        ("2.usage.prompt_tokens_details.cached_tokens", 5, "found in a cache"),
        ("1.usage", USAGE, "after the usage"),
    ],
)
def test_whatever_is_wrong_is_seen(path: str, value: Any, said: str) -> None:
    differs = changed(path, value).differs(put_together(WHOLE))
    assert differs is not None and said in differs


def test_the_beginning_of_an_answer_is_right_as_far_as_it_goes() -> None:
    right = put_together(WHOLE)
    assert put_together().strays(right) is None
    begun = put_together({"choices": [choice("a le")]})
    assert begun.strays(right) is None and begun.differs(right) is not None
    strays = put_together({"choices": [choice("a la")]}).strays(right)
    assert strays == "choice 0: after 3 characters 'a' in place of 'eaf'"
    assert put_together({"choices": [choice("a", index=1)]}).strays(right) is not None


def test_a_seed_draws_the_same_questions_of_every_kind() -> None:
    assert draw(3, each=2) == draw(3, each=2) != draw(4, each=2)
    assert {question.name.split()[0] for question in draw(3, each=1)} == set(KINDS)
