"""What `--lora-modules` takes: names and paths, plainly or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.lora_modules import LoraModule, located, parents, parse_modules, paths


@pytest.mark.parametrize(
    "given",
    [
        *("sql", "sql=", "=/adapters/sql"),
        *("{", '{"name": "sql"}', '{"name": "", "path": "/a"}', '{"name": 3, "path": "/a"}'),
        '{"name": "sql", "path": "/a", "rank": 4}',
    ],
)
def test_a_module_is_a_name_and_a_path(given: str) -> None:
    with pytest.raises(InvalidRequest, match="takes name=path.*got") as caught:
        parse_modules([given])
    assert caught.value.param == "lora_modules"
    assert repr(given) in caught.value.message and "\n" not in caught.value.message


def test_json_says_the_same_and_more() -> None:
    whole = {"name": "a=b", "path": "/a", "base_model_name": "m"}
    given = ["sql=/s=t", json.dumps({"name": "chat", "path": "/c"}), json.dumps(whole)]
    assert parse_modules(given) == {
        "sql": LoraModule("sql", "/s=t"),
        "chat": LoraModule("chat", "/c"),
        "a=b": LoraModule("a=b", "/a", "m"),
    }
    assert paths(given) == {"sql": "/s=t", "chat": "/c", "a=b": "/a"}
    assert parents(given) == {"sql": None, "chat": None, "a=b": "m"}


def test_one_name_is_one_adapter() -> None:
    with pytest.raises(InvalidRequest, match="two adapters that are called 'a'"):
        parse_modules(["a=1", '{"name": "a", "path": "2"}'])


def test_paths_are_made_whole_and_nothing_else_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["a=here", '{"name": "b=c", "path": "/there/x=y", "base_model_name": "m"}']
    assert parse_modules(located(given)) == {
        "a": LoraModule("a", str(tmp_path / "here")),
        "b=c": LoraModule("b=c", "/there/x=y", "m"),
    }
    assert located(located(given)) == located(given)
