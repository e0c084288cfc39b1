"""Structured output over HTTP: what is asked for is what comes, and what cannot be is refused
before an engine sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from octavo.scheduler.errors import STRAYED
from octavo.scheduler.grammar import MAX_GRAMMAR_CHARS
from octavo.scheduler.request import Finish, Request, TokenEvent
from tests.cluster.calls import Connect, chat, complete, error_of
from tests.cluster.case_server import Server, joined
from tests.cluster.schemas import random_schema
from tests.cluster.scripted import ScriptedEngine, Step, says
from tests.cluster.serving import MODEL

SCHEMAS = 200
ROOM = 450  # of the tiny model's 512 tokens
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
EBNF = """
root   ::= "<" entry ("," entry)* ">"
entry  ::= [a-c]+ "=" digit{1,3}   # a comment
digit  ::= [0-9]
"""


def wanted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def answer_to(server: Server, number: int) -> tuple[str, str]:
    """The text for a schema, and why it ended; each number asks another way."""
    schema = random_schema(number)
    ways = ({"response_format": wanted(schema)}, {"structured_outputs": {"json": schema}})
    fields = {**ways[number % 2], "max_tokens": ROOM, "seed": number, "temperature": 1.0}
    path = ("completions", "chat/completions")[number // 2 % 2]
    if number // 4 % 2:
        chunks = server.stream(path, **fields)
        ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        return joined(chunks), ends[-1]
    prompt = {"prompt": "Say", "messages": [{"role": "user", "content": "Hi"}]}
    answer = server.post(path, {**prompt, **fields})
    assert answer.status_code == 200, (schema, answer.text)
    (choice,) = answer.json()["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"], (
        choice["finish_reason"]
    )


def test_answers_to_random_schemas_parse_and_fit(server: Server) -> None:
    with ThreadPoolExecutor(24) as several:
        answers = list(several.map(lambda number: answer_to(server, number), range(SCHEMAS)))
    whole = 0
    for number, (text, finish) in enumerate(answers):
        if finish == "length":
            assert len(server.tokens(text)) > ROOM / 2, (number, text)
            continue
        assert finish == "stop"
        jsonschema.validate(
            json.loads(text), random_schema(number), format_checker=jsonschema.FormatChecker()
        )
        whole += 1
    assert whole >= SCHEMAS * 0.97, "a model of random weights may indent at length, but rarely"
    assert server.settles()


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"guided_regex": r"^\d{3}-[a-f]{2,5}$"}, r"\d{3}-[a-f]{2,5}"),
        ({"structured_outputs": {"regex": "(ab|cd){4}é"}}, "(ab|cd){4}é"),
        ({"guided_choice": ["yes", "no", "yes, but", "日本"]}, "yes|no|yes, but|日本"),
        ({"structured_outputs": {"choice": ['"']}}, '"'),
        ({"guided_grammar": EBNF}, r"<[a-c]+=\d{1,3}(,[a-c]+=\d{1,3})*>"),
        ({"structured_outputs": {"grammar": 'start: "x" /[0-9]/ "y"?'}}, r"x\d(y?)"),
        ({"response_format": {"type": "json_object"}}, r"(?s)\{.*\}"),
    ],
)
def test_every_kind_of_grammar_streamed_and_not(
    server: Server, fields: dict[str, Any], fits: str
) -> None:
    for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.9, "top_k": 50}):
        more = {**fields, **sampling, "max_tokens": 200}
        choice = server.complete(**more)["choices"][0]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(fits, choice["text"])
        assert joined(server.stream(**more)) == choice["text"]


def test_samples_of_one_request_each_follow_and_differ(server: Server) -> None:
    fields = {"response_format": wanted(SCHEMA), "n": 6, "temperature": 1, "seed": 5}
    answer = server.complete(**fields, max_tokens=300, best_of=8)
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) > 1
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), SCHEMA)
    chunks = server.stream(**fields, max_tokens=300)
    plain = server.complete(**fields, max_tokens=300)["choices"]
    assert [joined(chunks, index) for index in range(6)] == [each["text"] for each in plain]


def test_preempted_requests_go_on_in_their_grammars(
    server: Server, small_server: Callable[[int], Server]
) -> None:
    """The pool has room for a few of them at a time."""
    fields = {"guided_regex": "[a-z]{90}[0-9]{9}", "temperature": 1, "max_tokens": 120}
    small = small_server(18)

    def ask(one: Server, seed: int) -> list[str]:
        choices = one.complete(**fields, n=2, seed=seed)["choices"]
        return [choice["text"] for choice in choices]

    with ThreadPoolExecutor(4) as several:
        texts = list(several.map(lambda seed: ask(small, seed), range(4)))
    assert small.metric("vllm:num_preemptions_total") > 0
    assert texts == [ask(server, seed) for seed in range(4)]
    assert all(re.fullmatch("[a-z]{90}[0-9]{9}", text) for pair in texts for text in pair)


def test_how_answers_end(server: Server) -> None:
    schema = {"response_format": wanted(SCHEMA)}
    cut = server.complete(**schema, max_tokens=4)["choices"][0]
    assert cut["finish_reason"] == "length" and cut["text"].startswith("{")
    exact = server.complete(guided_choice=["no"], max_tokens=50)
    assert exact["choices"][0]["text"] == "no"
    tokens = len(server.tokens("no"))
    assert exact["usage"]["completion_tokens"] == tokens + 1, "and the end token"
    last = server.complete(guided_choice=["no"], max_tokens=tokens)["choices"][0]
    assert (last["text"], last["finish_reason"]) == ("no", "length")
    digits = {"guided_regex": "[0-9]+", "max_tokens": 30}
    long = server.complete(**digits, min_tokens=25, temperature=1, seed=1)
    assert long["usage"]["completion_tokens"] >= 25
    for more in ({"min_tokens": 30}, {"ignore_eos": True}):
        forced = server.complete(guided_choice=["no"], max_tokens=30, **more)["choices"][0]
        assert (forced["text"], forced["finish_reason"]) == ("no", "stop"), more
    endless = server.complete(**digits, ignore_eos=True, temperature=1, seed=1)["choices"][0]
    assert endless["finish_reason"] == "length" and re.fullmatch("[0-9]+", endless["text"])
    stopped = server.complete(guided_choice=["yes, but no"], stop=[","], max_tokens=30)
    assert stopped["choices"][0]["text"] == "yes"
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_logprobs_are_those_of_the_model_itself(server: Server) -> None:
    fields = {"guided_regex": "[0-9]{6}", "max_tokens": 20, "logprobs": 2}
    choice = server.complete(**fields)["choices"][0]
    entries = choice["logprobs"]
    assert "".join(entries["tokens"]).startswith(choice["text"])
    free = server.complete(max_tokens=1, logprobs=2)["choices"][0]["logprobs"]
    assert entries["top_logprobs"][0] == {
        entries["tokens"][0]: entries["token_logprobs"][0],
        **{token: pytest.approx(value) for token, value in free["top_logprobs"][0].items()},
    }
    assert all(-100 < value < 0 for value in entries["token_logprobs"])


def test_a_grammar_that_outgrows_the_bounds_is_its_users_mistake(connected: Connect) -> None:
    def script(request: Request) -> list[Step]:
        return [TokenEvent(request.id, [], Finish.ERROR, error=f"{STRAYED}: too many states")]

    with connected(ScriptedEngine(script)) as http:
        assert "too many states; make it simpler" in error_of(complete(http), 400)
        streamed = complete(http, stream=True)
        assert "too many states" in error_of(streamed, 400)


def test_the_openai_client_parses_what_it_asked_for(server: Server) -> None:
    from pydantic import BaseModel, Field

    class Part(BaseModel):
        kind: str = Field(pattern="^[ab]{1,3}$")
        size: int = Field(ge=0, le=99)

    class Whole(BaseModel):
        parts: list[Part] = Field(max_length=2)
        done: bool | None

    completion = server.openai.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        response_format=Whole,
        max_tokens=ROOM,
        seed=2,
    )
    assert isinstance(completion.choices[0].message.parsed, Whole)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": wanted({"type": "nonsense"})}, "response_format"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": wanted({"not": {}})}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_CHARS + 1)}, "guided_regex"),
        ({"guided_grammar": "root ::= nobody"}, "guided_grammar"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
        ({"guided_choice": ["a"], "use_beam_search": True, "n": 2}, "use_beam_search"),
    ],
)
def test_what_cannot_be_never_reaches_the_engine(
    connected: Connect, fields: dict[str, Any], param: str
) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        for ask in (complete, chat):
            for stream in (False, True):
                error_of(ask(http, **fields, stream=stream), 400, param)
        assert engine.seen == []
        assert complete(http, guided_regex="a+").status_code == 200
    (request,) = engine.seen
    assert request.sampling.grammar is not None and 1 in request.sampling.stop_token_ids
