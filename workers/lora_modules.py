"""What `--lora-modules` says, in both of vLLM's forms: `name=path`, and the same as JSON.

Knows no files: whoever only asks for names may be on another machine than they.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo.scheduler.errors import InvalidRequest

_FORMS = 'name=path, such as sql=/adapters/sql, or {"name": "sql", "path": "/adapters/sql"}'


class LoraModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An adapter's name for clients, its directory, and the model that it is shown to belong to:
    None for the one that it is served with."""

    name: str
    path: str
    base_model_name: str | None = None


def parse_modules(given: Sequence[str]) -> dict[str, LoraModule]:
    """By name. Raises `InvalidRequest`."""
    found: dict[str, LoraModule] = {}
    for item in given:
        module = _parse(item)
        if not module.name or not module.path:
            raise _wrong(f"--lora-modules takes {_FORMS}, got {item!r}")
        if module.name in found:
            raise _wrong(
                f"--lora-modules has two adapters that are called {module.name!r}; rename one"
            )
        found[module.name] = module
    return found


def located(given: Sequence[str]) -> list[str]:
    """The same as JSON with whole paths, for processes that run elsewhere. Raises
    `InvalidRequest`."""
    found = []
    for module in parse_modules(given).values():
        path = str(Path(module.path).expanduser().resolve())
        whole = msgspec.structs.replace(module, path=path)
        found.append(msgspec.json.encode(whole).decode())
    return found


def parents(given: Sequence[str]) -> dict[str, str | None]:
    """Each adapter's name with that of the model that it is shown to belong to, see
    `LoraModule`. Raises `InvalidRequest`."""
    return {name: module.base_model_name for name, module in parse_modules(given).items()}


def paths(given: Sequence[str]) -> dict[str, str]:
    """The directories by name. Raises `InvalidRequest`."""
    return {name: module.path for name, module in parse_modules(given).items()}


def _parse(item: str) -> LoraModule:
    if not item.lstrip().startswith("{"):
        name, _, path = item.partition("=")
        return LoraModule(name, path)
    try:
        return msgspec.json.decode(item, type=LoraModule)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _wrong(f"--lora-modules takes {_FORMS}, got {item!r}: {error}") from None


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest("lora_modules", message)
