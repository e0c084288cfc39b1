"""From what clients ask for to one grammar, or one refusal."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from octavo.cluster.api import structured
from octavo.cluster.api.protocol import CompletionRequest
from octavo.cluster.api.structured import (
    asked_grammar,
    grammar_for_choice,
    grammar_for_regex,
    grammar_for_schema,
)
from octavo.cluster.api.validate import parse
from octavo.cluster.text.grammars import Grammars
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import MAX_GRAMMAR_CHARS, Grammar
from octavo.workers.grammar import compile_grammar
from tests.cluster.text_models import BYTE_LEVEL, WORD_PIECE, byte_level

SCHEMA = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}}
TEXT = '{"type":"object","properties":{"b":{"const":1},"a":{"const":2}}}'
START = "start: CHOICE\nCHOICE: "
EBNF = 'root ::= "a" (b | [0-9]+)\nb ::= "b"?'
LARK = 'start: "a" b\nb: /[0-9]+/'


def body(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**fields) if not fields else parse(_json(fields), CompletionRequest)


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json", '{"type":"object"}'),
        ({"guided_json": SCHEMA}, "json", TEXT),
        ({"guided_json": TEXT}, "json", TEXT),
        ({"structured_outputs": {"json": SCHEMA}}, "json", TEXT),
        ({"structured_outputs": {"json_object": True}}, "json", '{"type":"object"}'),
        ({"guided_regex": r"^\d+\$$"}, "regex", r"\d+\$"),
        ({"structured_outputs": {"regex": r"a$\$"}}, "regex", r"a$\$"),
        ({"guided_choice": ['a "b"', "c\n"]}, "lark", START + r'"a \"b\"" | "c\n"'),
        ({"structured_outputs": {"choice": ["a"]}}, "lark", START + '"a"'),
        ({"guided_grammar": LARK}, "lark", LARK),
        ({"structured_outputs": {"grammar": LARK}}, "lark", LARK),
    ],
)
def test_every_way_to_ask(fields: dict[str, Any], kind: str, text: str) -> None:
    asked = asked_grammar(body(**fields))
    assert asked == (next(iter(fields)), Grammar(kind, text))  # type: ignore[arg-type]


def test_openais_schema_with_and_without_one() -> None:
    wrapped = {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"}
    for given, text in ((wrapped, TEXT), ({"name": "x"}, '{"type":"object"}')):
        fields = {"response_format": {"type": "json_schema", "json_schema": given}}
        assert asked_grammar(body(**fields)) == ("response_format", Grammar("json", text))


def test_asking_for_nothing() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"guided_json": None}):
        assert asked_grammar(body(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format",
            "name",
        ),
        ({"response_format": "json"}, "response_format", "object"),
        ({"guided_json": "not json"}, "guided_json", "no JSON schema"),
        ({"guided_json": "[1]"}, "guided_json", "no JSON schema"),
        ({"guided_json": "[" * 5000}, "guided_json", "no JSON schema"),
        ({"guided_regex": ""}, "guided_regex", "empty"),
        ({"guided_choice": []}, "guided_choice", "texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "texts"),
        ({"guided_choice": [3]}, "guided_choice", "str"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar", "no grammar"),
        ({"guided_grammar": 'a ::= "b"'}, "guided_grammar", "root"),
        ({"guided_grammar": 'root ::= "\\'}, "guided_grammar", "no grammar"),
        ({"guided_grammar": "root ::= " + "(" * 5000}, "guided_grammar", "nested"),
        ({"guided_grammar": "a ::= b\n" * 600}, "guided_grammar", "512"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_CHARS + 1)}, "guided_regex", str(MAX_GRAMMAR_CHARS)),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "combined"),
        ({"structured_outputs": {}}, "structured_outputs", "none"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs", "structural_tag"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs",
            "additionalProperties",
        ),
    ],
)
def test_what_is_refused_with_its_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        asked_grammar(body(**fields))
    assert refused.value.param == param


def test_both_dialects_of_grammars_are_told_apart() -> None:
    for text in (EBNF, '# start: "x"\nroot ::= "start: x"'):
        (_, grammar) = asked_grammar(body(guided_grammar=text)) or ("", Grammar("regex", "x"))
        assert "::=" not in grammar.text.replace('"start: x"', "") and "start:" in grammar.text
    arrow = 'start: "::="'
    assert asked_grammar(body(guided_grammar=arrow)) == ("guided_grammar", Grammar("lark", arrow))


def test_no_text_takes_long_to_look_at() -> None:
    chain = "\n".join(f"r{i} ::= r{i + 1}" for i in range(510)) + '\nr510 ::= "x"\nroot ::= r0'
    for text in ("\n" * 100_000 + "::=", " " * 100_000 + "::=", chain):
        began = time.process_time()
        with contextlib.suppress(InvalidRequest):
            asked_grammar(body(guided_grammar=text))
        assert time.process_time() - began < 3


def test_options_of_the_library_are_not_the_clients_business() -> None:
    schema = {"x-guidance": {"lenient": True, "item_separator": ";"}, **SCHEMA}
    assert grammar_for_schema(schema) == Grammar("json", TEXT)


@pytest.mark.parametrize(
    ("options", "fits", "not_fits"),
    [
        ({}, ['{"b":1}', '{ "b": 1 }', '{\n  "b" : 1\n}'], ['{  "b":1}', '{"b":1}\n']),
        ({"disable_any_whitespace": True}, ['{"b":1,"a":2}'], ['{"b": 1}']),
        ({"whitespace_pattern": "\t{1,2}"}, ['{\t\t"b":1}'], ['{"b": 1}', '{\t\t\t"b":1}']),
    ],
)
def test_what_may_stand_between_words(
    options: dict[str, Any], fits: list[str], not_fits: list[str]
) -> None:
    asked = asked_grammar(body(structured_outputs={"json": SCHEMA, **options}))
    assert asked is not None
    vocabulary = BYTE_LEVEL.vocabulary()
    for text, fit in [(text, True) for text in fits] + [(text, False) for text in not_fits]:
        matcher = compile_grammar(asked[1], vocabulary)
        tokens = [token for each in text for token in BYTE_LEVEL.encode(each)]
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) == fit, text
        assert matcher.is_accepting() or not fit


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTE_LEVEL)


BAD = {
    "regex": ["(", "a{2", "(?=a)b", "[b-a]", "\\p{Nonsense}"],
    "lark": ["start: (", "start: missing", "nonsense", "start: /(/", "{}", '{"grammars": []}'],
    "json": [
        '{"type":"nonsense"}',
        '{"$ref":"#/nowhere"}',
        '{"$ref":"https://example.com/schema"}',
        '{"type":"string","format":"nonsense"}',
        '{"not":{"type":"string"}}',
        '{"if":{"type":"string"},"then":{"minLength":2}}',
        '{"type":"integer","minimum":3,"maximum":2}',
        '{"type":"array","uniqueItems":true}',
        '{"type":"string","pattern":"("}',
        json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(900)}}),
        "false",
    ],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(k, text) for k, texts in BAD.items() for text in texts]
)
def test_a_bad_grammar_is_found_before_the_engine_sees_it(
    grammars: Grammars, kind: Any, text: str
) -> None:
    for _ in range(2):  # the second answer is remembered
        with pytest.raises(InvalidRequest) as refused:
            grammars.check_now("response_format", Grammar(kind, text))
        assert refused.value.param == "response_format"
        assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200 + "a" + ")" * 200,
        "(a{1,900}){1,900}",
        "(((a{1,99}b?){1,99}c?){1,99}){1,99}",
        "(.*a.{200})+",
        "(a|b|ab)*" * 200,
    ],
)
def test_no_expression_takes_long(grammars: Grammars, text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(InvalidRequest):
        grammars.check_now("guided_regex", Grammar("regex", text))
    assert time.process_time() - began < 3


def test_thousands_of_choices_are_as_good_as_two(grammars: Grammars) -> None:
    choices = [f"the {number}th possibility" for number in range(4000)]
    grammars.check_now("guided_choice", grammar_for_choice(choices))


def test_models_without_what_it_takes_say_so() -> None:
    endless = Grammars(Tokenizer(byte_level(), eos_ids=[]))
    for model, words in ((endless, "no token to end"), (Grammars(WORD_PIECE), "end|neighbours")):
        with pytest.raises(InvalidRequest, match=words):
            model.check_now("guided_regex", Grammar("regex", "a"))


def test_what_takes_too_long_to_prepare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.cluster.text import grammars as module

    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.0)
    with pytest.raises(InvalidRequest, match="to prepare"):
        Grammars(BYTE_LEVEL).check_now("guided_regex", Grammar("regex", "[a-z]+"))


def test_few_trials_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.cluster.text import grammars as module

    monkeypatch.setattr(module, "REMEMBERED", 3)
    some = Grammars(BYTE_LEVEL)
    for count in range(1, 6):
        some.check_now("guided_regex", Grammar("regex", f"a{{{count}}}"))
    assert len(some._known) == 3


def test_names_of_the_seam() -> None:
    assert structured.grammar_for_schema({"type": "object"}).kind == "json"
    assert grammar_for_regex("a").text == "a"
