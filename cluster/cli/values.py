"""Flags that several commands have are defined once, and what their values may be."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from octavo.cluster.cli.sizes import parse_bytes


class Flag:
    """A flag of several commands, as `add_argument` takes it."""

    def __init__(self, *names: str, **said: Any) -> None:
        self._names = names
        self._said = said

    def add(self, group: argparse._ActionsContainer, **differing: Any) -> None:
        """Adds it, with what this command says otherwise."""
        group.add_argument(*self._names, **(self._said | differing))


def positive(text: str) -> int:
    """A whole number above 0."""
    return int(_number(int, text, "a whole number above 0"))


def above_zero(text: str) -> float:
    """A number above 0, which may be infinite."""
    return _number(float, text, "a number above 0")


def rate(text: str) -> float:
    """The same, for what infinite ones are usual."""
    return _number(float, text, "a number above 0, or inf")


def size(text: str) -> int:
    """A number of bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def port(text: str) -> int:
    """A port of TCP."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port; give a number between 1 and 65535"
        )
    return int(text)


def json_object(text: str) -> dict[str, Any]:
    """JSON with names and values."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def _number(convert: Callable[[str], float], text: str, what: str) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = -1
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
