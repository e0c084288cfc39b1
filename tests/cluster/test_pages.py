"""The dashboard's files, and what it may look at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.cluster.api.pages import FOLDER, TYPES
from tests.cluster.calls import Connect, error_of
from tests.cluster.case_server import Server
from tests.cluster.pictures import read_picture
from tests.cluster.scripted import ScriptedEngine, says

FILES = sorted(FOLDER.iterdir())
ADMIN = {"Authorization": "Bearer admin"}
LOOKS = ("/debug/overview", "/debug/look")


def test_every_file_is_served_as_what_it_is_under_a_strict_policy(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), api_keys=("user",), admin_api_key="admin") as http:
        names = ["", *(f"/{path.name}" for path in FILES)]
        for name in names:
            answer = http.get(f"/dashboard{name}")
            assert answer.status_code == 200
            file = FOLDER / (name[1:] or "index.html")
            assert answer.content == file.read_bytes()
            assert answer.headers["content-type"].startswith(TYPES[file.suffix])
            policy = dict(
                rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == "'none'"
            allowed = set(policy.values())
            assert allowed == {"'none'", "'self'"}, "nothing from elsewhere, nothing inline"
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert "/dashboard" in http.get("/").json()["endpoints"]


@pytest.mark.parametrize("name", ["nothing.js", "../app.py", "..%2fapp.py", "%2e%2e/app.py", "x/y"])
def test_nothing_else_is_served(connected: Connect, name: str) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        assert http.get(f"/dashboard/{name}").status_code == 404


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_small_and_needs_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    addresses = set(re.findall(r"https?://[^\"' )]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    for risky in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert risky not in text
    assert not re.search(r"\sstyle=|\son[a-z]+=\"", text), "the policy forbids it"


def test_all_that_is_imported_or_linked_is_there() -> None:
    names = {path.name for path in FILES}
    for path in FILES:
        text = path.read_text()
        linked = re.findall(r"from \"\./([^\"]+)\"", text)
        linked += re.findall(r"\"dashboard/([^\"]+)\"", text)
        assert set(linked) <= names, path.name


def test_every_element_that_a_script_asks_for_is_in_the_page() -> None:
    page = (FOLDER / "index.html").read_text()
    there = re.findall(r"\bid=\"([^\"]+)\"", page)
    assert len(there) == len(set(there))
    asked = {name for path in FILES for name in re.findall(r"\$\(\"([^\"]+)\"\)", path.read_text())}
    assert asked and asked <= set(there)


@pytest.mark.parametrize("path", LOOKS)
def test_who_may_look(connected: Connect, path: str) -> None:
    """Everyone where nobody needs a key; else the admin alone."""
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        assert http.get(path).status_code == 200
    with connected(engine, api_keys=("user",)) as http:
        assert "--admin-api-key" in error_of(http.get(path), 404)
    for keys in ((), ("user",)):
        with connected(engine, api_keys=keys, admin_api_key="admin") as http:
            for headers in ({}, {"Authorization": "Bearer user"}):
                assert "admin key" in error_of(http.get(path, headers=headers), 401)
            answer = http.get(path, headers=ADMIN)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-store"


def test_a_look_says_what_it_wants_to_see(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        assert http.get("/debug/look").content == b"a picture"
        wanted: dict[str, str | int] = {
            "replica": "0",
            "request": "r",
            "index": 2,
            "tier": "host",
            "block": 17,
        }
        http.get("/debug/look", params=wanted)
    first, second = engine.looks
    assert (first.replica, first.request, first.block) == ("0", "", -1)
    assert {name: getattr(second, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"replica": "7"}, 400, "replica 7 is not up; up are: 0"),
        ({"tier": "disk"}, 400, "'disk'"),
        ({"block": "-1"}, 400, "'-1'"),
        ({"block": "9" * 10}, 400, "'9999999999'"),
        ({"index": "two"}, 400, "'two'"),
        ({"request": "r" * 513}, 400, "513"),
    ],
)
def test_a_look_that_cannot_be_is_refused(
    connected: Connect, query: dict[str, str], status: int, words: str
) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        param = next(iter(query))
        assert words in error_of(http.get("/debug/look", params=query), status, param)
    assert engine.looks == []


def test_no_replica_is_up(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    engine.up = False
    with connected(engine) as http:
        assert "up are: -" in error_of(http.get("/debug/look"), 400, "replica")
        assert http.get("/debug/overview").json()["num_replicas"] == 0


def test_a_real_server_shows_what_it_did(server: Server) -> None:
    before = server.http.get("/debug/overview").json()["replicas"][0]
    server.complete(max_tokens=40, ignore_eos=True)
    assert server.settles()
    after = server.http.get("/debug/overview").json()["replicas"][0]
    assert after["generation_tokens"] - before["generation_tokens"] == 40
    assert after["finished"] - before["finished"] == 1
    assert sum(after["ttft"]) - sum(before["ttft"]) == 1
    shown = read_picture(server.http.get("/debug/look").content)
    assert shown.heading.device.total == len(shown.device) == 200
    assert shown.heading.device.cached == shown.device.count(1) > 0
    assert shown.heading.steps[-1].tokens > 0
    assert 0 < shown.heading.steps[-1].computing <= shown.heading.steps[-1].seconds
