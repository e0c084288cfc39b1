"""The whole state of a scheduler as bytes, and back: where a journal begins anew.

Goes through the objects as they are, so it knows no field of any of them: numbers, texts and
containers by their kind, objects of `octavo.scheduler` by their attributes. Reading makes objects
of those classes alone and calls nothing but their `__new__`, so a foreign file can do no harm
(pickle could). Both ends must be the same code: a journal says by which it was written.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec

from octavo.cluster.journal.errors import JournalError
from octavo.scheduler.scheduler import Scheduler

HOUSE = "octavo.scheduler."
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})

Node = tuple[str, str, Any]
"""One object: its kind, its class or what else says how it is made, and what is in it."""

_decoder = msgspec.msgpack.Decoder(list[Node])


def freeze(scheduler: Scheduler) -> bytes:
    """Raises `TypeError` where the scheduler holds something that is no plain data."""
    return _Freezer().run(scheduler)


def thaw(raw: bytes) -> Scheduler:
    """Raises `JournalError` where these bytes are no scheduler of this version."""
    try:
        scheduler = _Thawer(_decoder.decode(raw)).run()
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(f"the state in it cannot be read: {error}") from None
    if not isinstance(scheduler, Scheduler):
        raise JournalError("the state in it is not a scheduler's")
    return scheduler


class _Freezer:
    """Objects are numbered as they are met; what refers to one has its number. A value in a node is
    plain, or a list: [number] of an object, or [tuple's values] in a list of their own."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []  # kept alive, so that their ids stay theirs

    def run(self, root: object) -> bytes:
        self._value(root)
        nodes = []
        at = 0
        while at < len(self._objects):  # it grows meanwhile
            nodes.append(self._node(self._objects[at]))
            at += 1
        return msgspec.msgpack.encode(nodes)

    def _value(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        if type(value) is tuple:
            return [[self._value(each) for each in value]]
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return [number]

    def _values(self, values: Iterable[Any]) -> list[Any]:
        values = list(values)
        if PLAIN.issuperset(map(type, values)):  # the large ones are; in C
            return values
        return [self._value(each) for each in values]

    def _node(self, item: Any) -> Node:
        kind = type(item)
        if kind in (list, set, frozenset):
            return kind.__name__, "", self._values(item)
        if kind in (dict, OrderedDict, Counter):
            return kind.__name__, "", [self._values(item.keys()), self._values(item.values())]
        if kind is deque:
            return "deque", "", [item.maxlen, self._values(item)]
        if kind is array:
            return "array", item.typecode, item.tobytes()
        if kind is bytearray:
            return "bytearray", "", bytes(item)
        if not kind.__module__.startswith(HOUSE):
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no plain data")
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(item, Enum):
            return "enum", name, item.value
        if isinstance(item, msgspec.Struct):
            return "struct", name, msgspec.msgpack.encode(item)
        fields = {name: getattr(item, name) for name in _fields(item) if hasattr(item, name)}
        return "object", name, [list(fields), self._values(fields.values())]


class _Thawer:
    """Makes all objects empty, then fills them: they refer to one another."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._classes = _classes()
        self._objects: list[Any] = []

    def run(self) -> Any:
        self._objects = [self._make(*node) for node in self._nodes]
        for item, (kind, _, content) in zip(self._objects, self._nodes, strict=True):
            self._fill(item, kind, content)
        return self._objects[0]

    def _make(self, kind: str, name: str, content: Any) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "list": list,
            "set": set,
            "dict": dict,
            "OrderedDict": OrderedDict,
            "Counter": Counter,
            "frozenset": lambda: frozenset(content),
            "deque": lambda: deque(maxlen=content[0]),
            "array": lambda: array(name, content),
            "bytearray": lambda: bytearray(content),
        }
        if kind in makers:
            return makers[kind]()
        cls = self._classes[name]
        if kind == "struct" and issubclass(cls, msgspec.Struct):
            return msgspec.msgpack.decode(content, type=cls)
        if kind == "enum" and issubclass(cls, Enum):
            return cls(content)
        if kind != "object" or issubclass(cls, (msgspec.Struct, Enum)):
            raise ValueError(f"no object is of the kind {kind!r}")
        return cls.__new__(cls)

    def _fill(self, item: Any, kind: str, content: Any) -> None:
        match kind:
            case "list":
                item.extend(self._values(content))
            case "deque":
                item.extend(self._values(content[1]))
            case "set":
                item.update(self._values(content))
            case "dict" | "OrderedDict" | "Counter":
                keys, values = content
                for key, value in zip(self._values(keys), self._values(values), strict=True):
                    item[key] = value
            case "object":
                names, values = content
                known = set(_fields(item)) if hasattr(type(item), "__slots__") else set(names)
                for name, value in zip(names, self._values(values), strict=True):
                    if name not in known or name.startswith("__"):
                        raise ValueError(f"{type(item).__name__} has no {name!r}")
                    object.__setattr__(item, name, value)

    def _values(self, values: list[Any]) -> list[Any]:
        if list not in set(map(type, values)):
            return values
        return [self._value(each) for each in values]

    def _value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        (inner,) = value
        if type(inner) is list:
            return tuple([self._value(each) for each in inner])
        return self._objects[inner]


def _fields(item: object) -> list[str]:
    """Names of an object's attributes, whichever way it keeps them."""
    slots = [name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())]
    return [*slots, *getattr(item, "__dict__", ())]


def _classes() -> dict[str, type]:
    return {
        f"{cls.__module__}.{cls.__qualname__}": cls
        for name, module in list(sys.modules.items())
        if name.startswith(HOUSE)
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == name
    }
