"""What may stand around what a grammar holds an answer to: reasoning before it, and in an answer
that may call tools, text around each call.

Frames are written in llguidance's variant of Lark, for `Grammar.frame`; `@answer` is what they are
around. They let through what the readers of `reasoning` and `tool_calls` read. Markers are matched
as text, which is what they are in the vocabularies of the models that are read so; one that is a
special token stands in no text, and cannot be framed.
"""

from __future__ import annotations

from octavo.cluster.text.reasoning import END, START, ReasoningKind, expected_reasoning
from octavo.cluster.text.tool_calls import HermesCalls, Llama3Calls, ToolFormat

_SPACE = "/\\s{0,8}/"


def call_frame(format: ToolFormat, *, single: bool) -> tuple[str, str] | None:
    """A rule `body`, and the key of a call's arguments, for an answer in which each call is an
    `@answer`. None for a format whose arguments are not JSON."""
    if format == "hermes":
        start, end = _escaped(HermesCalls.start), _escaped(HermesCalls.end)
        call = "(before space @answer space after)" + ("?" if single else "*")
        return (
            f"body: {call} REST\n"
            f"before[lazy]: /(?s:.*){start}/\n"
            f"after: /{end}/\n"
            f"REST: /(?s:.*)/ & ~/(?s:.*{start}.*)/\n",
            "arguments",
        )
    if format == "llama3_json":
        more = "" if single else ' (space ";" space @answer)*'
        tag = _escaped(Llama3Calls.tag)
        return (
            f"body: space @answer{more} | REST\nREST: /(?s:.*)/ & ~/(?s:\\s*({tag}\\s*)?\\{{.*)/\n",
            "parameters",
        )
    return None


def frame(body: str | None, reasoning: ReasoningKind | None, prompt: str) -> str:
    """For an answer to this prompt: reasoning, where there is to be some, then what `body` says, a
    rule of `call_frame`, or an `@answer` alone. Empty where nothing stands around that."""
    expected = "none" if reasoning is None else expected_reasoning(reasoning, prompt)
    if expected == "none" and body is None:
        return ""
    thought = {"none": "", "begun": "thought space ", "possible": "(begin thought space)? "}
    rules = f"start: {thought[expected]}body\n"
    if expected != "none":
        rules += f"thought[lazy]: /(?s:.*){_escaped(END)}/\n"
    if expected == "possible":
        rules += f"begin: /\\s{{0,8}}{_escaped(START)}/\n"
    return f"{rules}space: {_SPACE}\n{body or 'body: @answer'}"


def _escaped(marker: str) -> str:
    return marker.replace("/", "\\/").replace("|", "\\|")
