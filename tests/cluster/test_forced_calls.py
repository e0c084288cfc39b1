"""Answers that are calls and nothing else: their schema, and what is read of them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings

from octavo.cluster.text.forced_calls import CallList, NamedCall, list_schema
from tests.cluster.readings import CUTS, pieces_of, read, said
from tests.cluster.test_tool_calls import CALLS, PARIS, TOOLS, call

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def item(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


def holds(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_the_schema_of_calls() -> None:
    schema = list_schema({"get_weather": CITY, "add": None}, single=False)
    jsonschema.Draft202012Validator.check_schema(schema)
    paris = item("get_weather", city="Paris")
    assert holds(schema, [paris]) and holds(schema, [item("add", a=1), paris, paris])
    wrong: list[Any] = [[], {}, [item("add"), item("no")], [item("get_weather")], [{"name": "add"}]]
    for each in wrong:
        assert not holds(schema, each)
    single = list_schema({"get_weather": CITY}, single=True)
    assert holds(single, [paris]) and not holds(single, [paris, paris])


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_references_within_the_tools_schemas_are_kept(key: str) -> None:
    """Two tools may mean different things by one name, or refer to themselves."""

    def referring(kind: str) -> dict[str, Any]:
        more, y = {"$ref": "#"}, {"$ref": f"#/{key}/Y"}
        properties = {"x": {"type": kind}, "more": more, "y": y}
        return {"type": "object", "properties": properties, key: {"Y": {"type": kind}}}

    schema = list_schema(
        {"a": referring("string"), "b": referring("integer"), "c": CITY}, single=True
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    assert holds(schema, [item("a", x="s", y="s", more={"y": "s"})])
    assert holds(schema, [item("b", x=1, y=1, more={"more": {"y": 2}})])
    assert holds(schema, [item("c", city="Paris")])
    assert not holds(schema, [item("a", y=1)]) and not holds(schema, [item("b", y="s")])
    assert not holds(schema, [item("b", more={"more": {"y": "s"}})])


def calls() -> CallList:
    return CallList(TOOLS)


def test_a_list_of_calls_is_read() -> None:
    one = f'{{"name": "get_weather", "parameters": {PARIS}}}'
    assert read(calls, f"[{one}]") == call("get_weather", PARIS)
    assert read(calls, f"\n[ {one} ,\n{one} ]\n") == call("get_weather", PARIS) * 2
    assert read(calls, f"[{one[:-4]}") == call("get_weather", PARIS[:-3])
    for other in ("", "{}", "[]", '[{"name": "no"}]', "text"):
        assert read(calls, other) == ([("content", other)] if other else [])


@settings(deadline=None, max_examples=50)
@given(calls=CALLS, cuts=CUTS)
def test_what_the_schema_holds_for_is_read(calls: list[Any], cuts: list[int]) -> None:
    schema = list_schema(dict.fromkeys(TOOLS), single=False)
    items = [item(name, **arguments) for name, arguments in calls]
    assert holds(schema, items)
    heard = said(pieces_of(CallList(TOOLS), json.dumps(items), cuts))
    assert [text for kind, text in heard if kind == "call"] == [name for name, _ in calls]
    assert [json.loads(text) for kind, text in heard if kind == "arguments"] == [
        arguments for _, arguments in calls
    ]


def test_a_single_call_of_a_list_ends_it() -> None:
    reader = CallList(TOOLS, single=True)
    reader.feed('[{"name": "add", "parameters": {}}')
    assert reader.finished


def test_the_arguments_of_a_call_that_was_chosen() -> None:
    assert read(lambda: NamedCall("add"), f" {PARIS}\n") == call("add", f"{PARIS}\n")
    assert read(lambda: NamedCall("add"), "") == []
