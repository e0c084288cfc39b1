"""What a client wants its answer to look like, as one grammar: OpenAI's `response_format`, and
vLLM's `structured_outputs` and older `guided_*` fields.

Only translates. Whether a grammar is one, `octavo.cluster.text.grammars` finds out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.cluster.api.protocol import SamplingFields, StructuredOutputs
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import MAX_GRAMMAR_CHARS, Grammar

MAX_RULES = 512  # of an EBNF grammar, whose translation takes time by their square
_RULE = "::="
_LARK = re.compile(r"%llguidance\b|start\s{0,9}:(?!:=)")
_OPTIONS = "x-guidance"  # where the library looks for how JSON is to be written
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def asked_grammar(body: SamplingFields) -> tuple[str, Grammar] | None:
    """The parameter that asks for one, and what it asks for. Raises `InvalidRequest`."""
    asked = [*_response_format(body), *_guided(body)]
    if body.structured_outputs is not None:
        asked.append(("structured_outputs", _structured_outputs(body.structured_outputs)))
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise InvalidRequest(asked[1][0], f"{names} cannot be combined; send one of them")
    return asked[0] if asked else None


def grammar_for_schema(
    schema: dict[str, Any], param: str = "response_format", space: str | None = None
) -> Grammar:
    """For JSON that the schema holds for. `space` is an expression for what may stand between its
    words, "" for nothing. Raises `InvalidRequest` that names `param` where it is too large."""
    bare = {name: value for name, value in schema.items() if name != _OPTIONS}  # our business
    if space is not None:
        bare[_OPTIONS] = {"whitespace_pattern": space or None, "whitespace_flexible": bool(space)}
    try:
        text = msgspec.json.encode(bare).decode()
    except RecursionError as error:
        raise InvalidRequest(param, f"{param}: the schema is nested too deeply") from error
    return _grammar(param, "json", text)


def grammar_for_regex(regex: str, param: str = "structured_outputs") -> Grammar:
    """For a text that the expression matches from start to end, with or without `^` and `$`."""
    bare = regex.removeprefix("^")
    if bare.endswith("$"):
        escapes = len(bare) - 1 - len(bare[:-1].rstrip("\\"))
        bare = bare if escapes % 2 else bare[:-1]
    return _grammar(param, "regex", bare)


def grammar_for_choice(choices: Sequence[str], param: str = "structured_outputs") -> Grammar:
    """For one of these texts: one word of the grammar, as thousands of words are too many."""
    if not choices or "" in choices:
        raise InvalidRequest(param, f"{param}: a choice needs texts, and none of them empty")
    quoted = [msgspec.json.encode(choice).decode() for choice in choices]
    return _grammar(param, "lark", "start: CHOICE\nCHOICE: " + " | ".join(quoted))


def grammar_for_ebnf(text: str, param: str = "structured_outputs") -> Grammar:
    """For a sentence of a grammar: in EBNF as llama.cpp and xgrammar write it (`root ::= ...`), or
    in Lark (`start: ...`)."""
    _bounded(param, text)
    if _is_lark(text):
        return _grammar(param, "lark", text)
    if text.count(_RULE) > MAX_RULES:
        raise InvalidRequest(
            param, f"{param}: a grammar may have at most {MAX_RULES} rules, got {text.count(_RULE)}"
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark = gbnf_to_lark(text)
    except RecursionError as error:
        raise InvalidRequest(param, f"{param}: the grammar is nested too deeply") from error
    except Exception as error:  # the library raises plain ones, and an IndexError at an open end
        raise InvalidRequest(param, f"{param} is no grammar: {error}") from error
    return _grammar(param, "lark", lark)


def _response_format(body: SamplingFields) -> list[tuple[str, Grammar]]:
    wanted, name = body.response_format, "response_format"
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [(name, grammar_for_schema(_ANY_OBJECT, name))]
    if wanted.json_schema is None:
        raise InvalidRequest(name, f"{name} of type json_schema needs json_schema")
    schema = wanted.json_schema.schema
    return [(name, grammar_for_schema(_ANY_OBJECT if schema is None else schema, name))]


def _guided(body: SamplingFields) -> list[tuple[str, Grammar]]:
    asked = []
    if body.guided_json is not None:
        space = body.guided_whitespace_pattern
        asked.append(("guided_json", _schema(body.guided_json, "guided_json", space)))
    if body.guided_regex is not None:
        asked.append(("guided_regex", grammar_for_regex(body.guided_regex, "guided_regex")))
    if body.guided_choice is not None:
        asked.append(("guided_choice", grammar_for_choice(body.guided_choice, "guided_choice")))
    if body.guided_grammar is not None:
        asked.append(("guided_grammar", grammar_for_ebnf(body.guided_grammar, "guided_grammar")))
    return asked


def _structured_outputs(wanted: StructuredOutputs) -> Grammar:
    param = "structured_outputs"
    kinds = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    given = [kind for kind in kinds if getattr(wanted, kind) not in (None, False)]
    if len(given) != 1:
        raise InvalidRequest(
            param,
            f"{param} needs one of json, json_object, regex, choice and grammar, "
            f"got {', '.join(given) or 'none'}",
        )
    if wanted.disable_additional_properties:
        raise InvalidRequest(
            param,
            f"{param}: disable_additional_properties is not supported by this server; write "
            '"additionalProperties": false where the schema is to forbid them',
        )
    space = "" if wanted.disable_any_whitespace else wanted.whitespace_pattern
    if wanted.json is not None:
        return _schema(wanted.json, param, space)
    if wanted.regex is not None:
        return grammar_for_regex(wanted.regex, param)
    if wanted.choice is not None:
        return grammar_for_choice(wanted.choice, param)
    if wanted.grammar is not None:
        return grammar_for_ebnf(wanted.grammar, param)
    if wanted.structural_tag is not None:
        raise InvalidRequest(param, f"{param}: structural_tag is not supported by this server")
    return grammar_for_schema(_ANY_OBJECT, param, space)


def _schema(given: dict[str, Any] | str, param: str, space: str | None) -> Grammar:
    """A schema as an object, or as JSON text."""
    if isinstance(given, str):
        _bounded(param, given)
        try:
            given = msgspec.json.decode(given, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(param, f"{param} is no JSON schema: {error}") from error
    return grammar_for_schema(given, param, space)


def _is_lark(text: str) -> bool:
    """Line by line: a search that may begin with any number of blanks takes time by its square."""
    return _RULE not in text or any(_LARK.match(line.lstrip()) for line in text.splitlines())


def _grammar(param: str, kind: Any, text: str) -> Grammar:
    _bounded(param, text)
    return Grammar(kind, text)


def _bounded(param: str, text: str) -> None:
    if not text.strip():
        raise InvalidRequest(param, f"{param}: the grammar is empty")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            param,
            f"{param}: a grammar may have at most {MAX_GRAMMAR_CHARS} characters, got {len(text)}",
        )
