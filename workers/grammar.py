"""A grammar made ready to follow a stream, by llguidance, within bounds.

Of the two libraries that were tried, xgrammar being the other, it is the one that refuses what it
cannot hold an answer to, where the other leaves a keyword out (`not`, `uniqueItems`); it prepares a
schema about ten times sooner; each of its steps has a bound; and it brings nothing else along.
"""

from __future__ import annotations

import json
from typing import Any

import llguidance

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import Grammar
from octavo.workers.vocabulary import Vocabulary

# One blank, or a new line with its indentation: what anyone writes who writes JSON for a reader. A
# model that may write any number of blanks may do so for ever. A schema's own "x-guidance" goes
# before, which only the front puts there.
JSON_SPACE = r"[ ]|\n[ \t]{0,32}"

_JSON_OPTIONS: llguidance._lib.JsonCompileOptions = {"whitespace_pattern": JSON_SPACE}


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> llguidance.LLMatcher:
    """A matcher at the start of `grammar`, to be copied for each stream. Takes some milliseconds
    for what people write. Raises `InvalidRequest` with the library's reason."""
    matcher = llguidance.LLMatcher(
        vocabulary.tokenizer, _source(grammar), log_level=0, limits=_limits()
    )
    if matcher.is_error():
        raise InvalidRequest("grammar", first_line(matcher.get_error()))
    return matcher


def first_line(message: str) -> str:
    """Of an error of the library, which may go on with what it was given."""
    lines = message.strip().splitlines() or ["no reason given"]
    return lines[0][:300]


def _source(grammar: Grammar) -> str:
    """The library's own form."""
    try:
        source = _bare(grammar)
    except ValueError as error:
        raise InvalidRequest("grammar", first_line(str(error))) from error
    if not grammar.frame:
        return source
    answer: dict[str, Any] = (
        {"lark_grammar": source} if grammar.kind == "lark" else json.loads(source)["grammars"][0]
    )
    return json.dumps({"grammars": [{"lark_grammar": grammar.frame}, answer | {"name": "answer"}]})


def _bare(grammar: Grammar) -> str:
    match grammar.kind:
        case "json":
            return llguidance.LLMatcher.grammar_from_json_schema(
                grammar.text, defaults=_JSON_OPTIONS
            )
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            return llguidance.LLMatcher.grammar_from_lark(grammar.text)


def _limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        max_grammar_size=200_000, max_lexer_states=50_000, verbose_errors=False
    )
