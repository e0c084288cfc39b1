"""The whole state of a scheduler as bytes, and back: where a journal begins anew.

Goes through the objects as they are, so it knows no field of any of them: numbers, texts and
containers by their kind, objects of `octavo.scheduler` by their attributes. Reading makes objects
of those classes alone and calls nothing but their `__new__`, so a foreign file can do no harm
(pickle could). Both ends must be the same code: a journal says by which it was written.

Of a pool of a million blocks the state is tens of megabytes, and whoever freezes it must not wait
for them: what is large is only copied then, reference by reference, and made bytes of in pieces,
later and on another thread.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any

import msgspec

from octavo.cluster.journal.errors import JournalError
from octavo.scheduler.scheduler import Scheduler

HOUSE = "octavo.scheduler."
LARGE = 2**15  # entries of a container, from which on it is kept in pieces
PIECE = 2**13  # entries of a piece
LOOKED_AT = 2**10  # entries of a large container, before it is taken for plain data
LARGE_KINDS = frozenset({list, dict, OrderedDict, array, bytearray})
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})

Node = tuple[str, str, Any]
"""One object: its kind, its class or what else says how it is made, and what is in it."""

_decoder = msgspec.msgpack.Decoder(list[Node])
_piece_decoder = msgspec.msgpack.Decoder(list[Any])


class Frozen:
    """The state at one moment. `head` is all of it but `count` pieces."""

    def __init__(self, head: bytes, larges: list[Any]) -> None:
        self.head = head
        self.count = sum(_pieces(large) for large in larges)
        self._larges = larges

    def pieces(self) -> Iterator[bytes]:
        """Once. What was copied is let go of as it is used: all at once would take long. Raises
        `TypeError` for what is no plain data."""
        for large in self._larges:
            for at in range(0, len(large), PIECE):
                values = large[at : at + PIECE]
                if isinstance(large, array | bytes):
                    yield bytes(values)
                    continue
                if not PLAIN.issuperset(map(type, values)):
                    raise TypeError("a container of plain data has something else in it")
                yield msgspec.msgpack.encode(values)
            while isinstance(large, list) and large:
                del large[-PIECE:]


def freeze(scheduler: Scheduler) -> Frozen:
    """Raises `TypeError` where the scheduler holds something that is no plain data."""
    return _Freezer().run(scheduler)


def thaw(head: bytes, pieces: Sequence[bytes]) -> Scheduler:
    """Raises `JournalError` where these bytes are no scheduler of this version."""
    try:
        scheduler = _Thawer(_decoder.decode(head), pieces).run()
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
        self._larges: list[Any] = []
        self._count = 0

    def run(self, root: object) -> Frozen:
        self._value(root)
        nodes = []
        at = 0
        while at < len(self._objects):  # it grows meanwhile
            nodes.append(self._node(self._objects[at]))
            at += 1
        return Frozen(msgspec.msgpack.encode(nodes), self._larges)

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
        if kind in LARGE_KINDS and len(item) >= LARGE and (copies := _copies(item)) is not None:
            name = item.typecode if kind is array else ""
            return f"large {kind.__name__}", name, [self._later(each) for each in copies]
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

    def _later(self, large: Any) -> list[int]:
        """Keeps a copy, and says which pieces will be made of it."""
        begin = self._count
        self._count += _pieces(large)
        self._larges.append(large)
        return [begin, self._count]


def _copies(item: Any) -> list[Any] | None:
    """Of a large container, by reference. None where it does not look like plain data; where only
    its beginning does, `Frozen.pieces` notices."""
    if isinstance(item, array | bytearray):
        return [item[:] if isinstance(item, array) else bytes(item)]
    values = chain.from_iterable(item.items()) if isinstance(item, dict) else item
    if not PLAIN.issuperset(map(type, islice(values, LOOKED_AT))):
        return None
    return [list(item.keys()), list(item.values())] if isinstance(item, dict) else [item.copy()]


def _pieces(large: Any) -> int:
    return -(-len(large) // PIECE)


class _Thawer:
    """Makes all objects empty, then fills them: they refer to one another."""

    def __init__(self, nodes: list[Node], pieces: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._pieces = pieces
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
            "large list": list,
            "large dict": dict,
            "large OrderedDict": OrderedDict,
            "large array": lambda: array(name),
            "large bytearray": bytearray,
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
            case "large list":
                for piece in self._of(content[0]):
                    item.extend(_plain(piece))
            case "large dict" | "large OrderedDict":
                keys, values = content
                for some, theirs in zip(self._of(keys), self._of(values), strict=True):
                    item.update(zip(_plain(some), _plain(theirs), strict=True))
            case "large array":
                for piece in self._of(content[0]):
                    item.frombytes(piece)
            case "large bytearray":
                for piece in self._of(content[0]):
                    item.extend(piece)
            case "object":
                names, values = content
                known = set(_fields(item)) if hasattr(type(item), "__slots__") else set(names)
                for name, value in zip(names, self._values(values), strict=True):
                    if name not in known or name.startswith("__"):
                        raise ValueError(f"{type(item).__name__} has no {name!r}")
                    object.__setattr__(item, name, value)

    def _of(self, span: list[int]) -> Sequence[bytes]:
        begin, end = span
        return self._pieces[begin:end]

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


def _plain(piece: bytes) -> list[Any]:
    values: list[Any] = _piece_decoder.decode(piece)
    if not PLAIN.issuperset(map(type, values)):
        raise ValueError("a piece has something else than plain data in it")
    return values


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
