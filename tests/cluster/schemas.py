"""Random JSON schemas whose answers are short: every string, number and array has a bound."""

from __future__ import annotations

from random import Random
from typing import Any

NAMES = ["id", "name", "größe", "tags", 'a "quoted" one', "x", "kind"]
PATTERNS = ["^[a-c]{1,4}$", "^\\d{2}-\\d{2}$", "^(yes|no)$"]


def random_schema(seed: int) -> dict[str, Any]:
    """An object, sometimes with definitions that it refers to."""
    draw = Random(seed)
    schema = _object(draw, 2)
    if seed % 5 == 0:
        schema["$defs"] = {"part": _object(draw, 1)}
        schema["properties"]["part"] = {"$ref": "#/$defs/part"}
        schema["required"].append("part")
    return schema


def _object(draw: Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _value(draw, depth) for name in names},
        "required": draw.sample(names, draw.randint(0, len(names))),
        "additionalProperties": False,
    }


def _value(draw: Random, depth: int) -> dict[str, Any]:
    flat = [_integer, _number, _string, _pattern, _enum, _const, _plain, _date]
    nested = [_object, _array, _any_of]
    kind: Any = draw.choice(nested if depth and draw.random() < 0.5 else flat)
    schema: dict[str, Any] = kind(draw, depth - 1)
    return schema


def _array(draw: Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 2)
    return {
        "type": "array",
        "items": _value(draw, depth),
        "minItems": least,
        "maxItems": least + draw.randint(0, 1),
    }


def _any_of(draw: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(draw, depth) for _ in range(draw.randint(2, 3))]}


def _integer(draw: Random, _: int) -> dict[str, Any]:
    low = draw.randint(-200, 200)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 1000)}


def _number(draw: Random, _: int) -> dict[str, Any]:
    return {"enum": [draw.randint(-9, 9) / 4, 1e21, 0]}


def _string(draw: Random, _: int) -> dict[str, Any]:
    least = draw.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 5)}


def _pattern(draw: Random, _: int) -> dict[str, Any]:
    return {"type": "string", "pattern": draw.choice(PATTERNS)}


def _enum(draw: Random, _: int) -> dict[str, Any]:
    return {"enum": draw.sample(["red", "gr\nün", 3, None, True, "", [1, 2]], 3)}


def _const(draw: Random, _: int) -> dict[str, Any]:
    return {"const": draw.choice(["fixed", 7, {"a": [None]}])}


def _plain(draw: Random, _: int) -> dict[str, Any]:
    return {"type": draw.choice(["boolean", "null", ["boolean", "null"]])}


def _date(draw: Random, _: int) -> dict[str, Any]:
    return {"type": "string", "format": draw.choice(["date", "uuid", "ipv4"])}
