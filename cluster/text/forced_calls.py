"""Answers that are calls and nothing else, because the request wants it so and a grammar holds the
model to it: the schema that the grammar is made from, and the readers of what it lets through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.cluster.text.pieces import Machine, Reading
from octavo.cluster.text.tool_calls import CallReader

_ANYTHING: Mapping[str, Any] = {"type": "object"}


def list_schema(tools: Mapping[str, Mapping[str, Any] | None], *, single: bool) -> dict[str, Any]:
    """For a list of calls of these tools, at least one, as `CallList` reads it. `tools` has the
    schema of each one's arguments by its name."""
    call = call_schema(tools, "parameters")
    definitions = call.pop("$defs", None)
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": call}
    if single:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def call_schema(tools: Mapping[str, Mapping[str, Any] | None], key: str) -> dict[str, Any]:
    """For one call of one of these tools, as an object with its name and, as `key`, its
    arguments."""
    calls = []
    definitions = {}
    for number, (name, parameters) in enumerate(tools.items()):
        own: Any = parameters or _ANYTHING
        place = f"#/$defs/tool{number}"
        if (moved := _with_root(own, place)) != own:
            definitions[f"tool{number}"] = moved
            own = {"$ref": place}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: own},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"anyOf": calls}
    if definitions:
        schema["$defs"] = definitions
    return schema


class CallList(CallReader):
    """`[{"name": …, "parameters": {…}}, …]`, the whole answer."""

    def _read(self) -> Reading[None]:
        if (yield from self._solid()) == "[":
            while (yield from self._call()):
                yield from self._skip_space()
                if (yield from self._next()) != ",":
                    yield from self._rest("markup")
                self._emit("markup")
        yield from self._rest("content")


class NamedCall(Machine):
    """The arguments of one call of a tool that was chosen beforehand, the whole answer."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__()

    def _read(self) -> Reading[None]:
        yield from self._solid()
        self._unread()
        self._emit("call", self._name)
        yield from self._rest("arguments")


def _with_root(schema: Any, place: str) -> Any:
    """The schema with its references to itself as they must be where it lies at `place`."""
    if isinstance(schema, list):
        return [_with_root(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _with_root(value, place)
        for key, value in schema.items()
    }
