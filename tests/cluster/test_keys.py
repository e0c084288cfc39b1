"""Who may call: keys that are given, and a file of them that changes while the server runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.cluster.api import keys as module
from octavo.cluster.api.failures import NotAdmin, Unauthorized
from octavo.cluster.api.keys import Doorkeeper, Keys, resolve_keys
from octavo.scheduler.errors import InvalidRequest
from tests.cluster.calls import Connect
from tests.cluster.scripted import ScriptedEngine, says


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lets_in(door: Doorkeeper, key: str) -> bool:
    try:
        return door.tenant(f"Bearer {key}") == key
    except Unauthorized:
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# tenants\none\n\n  two \n")
    return path


def test_keys_of_a_file_count_beside_those_given(file: Path) -> None:
    door = Doorkeeper(Keys(("given",), None, str(file)))
    assert [lets_in(door, key) for key in ("given", "one", "two")] == [True] * 3
    assert not any(lets_in(door, key) for key in ("", "# tenants", "three", "on", "onee"))
    with pytest.raises(Unauthorized):
        door.tenant(None)


def test_a_change_counts_a_second_later(file: Path, clock: Clock) -> None:
    door = Doorkeeper(Keys((), None, str(file)), clock)
    file.write_text("two\nthree\n")
    assert lets_in(door, "one") and not lets_in(door, "three")
    clock.now = 1.0
    assert lets_in(door, "three") and lets_in(door, "two") and not lets_in(door, "one")
    file.write_text("# none\n")
    clock.now = 2.0
    assert not lets_in(door, "two"), "an empty file lets nobody in, rather than everybody"


def test_a_file_that_is_replaced_whole_is_seen(file: Path, clock: Clock, tmp_path: Path) -> None:
    """As secrets of Kubernetes are: a link is turned to another file, of the same size and date."""
    other, link = tmp_path / "other", tmp_path / "link"
    link.symlink_to(file)
    door = Doorkeeper(Keys((), None, str(link)), clock)
    other.write_text(file.read_text().replace("one", "new"))
    times = file.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    link.unlink()
    link.symlink_to(other)
    clock.now = 1.0
    assert lets_in(door, "new") and not lets_in(door, "one")


def test_what_cannot_be_read_changes_nothing_and_is_said_once(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    door = Doorkeeper(Keys((), None, str(file)), clock)
    content = file.read_text()
    file.unlink()
    for clock.now in (1.0, 2.0, 3.0):
        assert lets_in(door, "one")
    assert caplog.text.count("cannot be read") == 1 and "no such file" in caplog.text
    file.write_bytes(b"\xff\n")
    clock.now = 4.0
    assert lets_in(door, "one")
    file.write_text(content + "four\n")
    clock.now = 5.0
    assert lets_in(door, "four")
    assert "has changed; keys in it: 3" in caplog.text
    assert not any(key in caplog.text.replace(str(file), "") for key in ("one", "two", "four"))


def test_a_key_may_have_any_letters() -> None:
    door = Doorkeeper(Keys(("schlüssel",), "öffne", None))
    sent = "schlüssel".encode().decode("latin-1")  # as a header that holds UTF-8 is read
    assert lets_in(door, sent)
    door.check_admin("Bearer " + "öffne".encode().decode("latin-1"))
    with pytest.raises(NotAdmin):
        door.check_admin(f"Bearer {sent}")


def test_the_admins_key_is_no_callers(file: Path, clock: Clock) -> None:
    door = Doorkeeper(Keys(("given",), "boss", str(file)), clock)
    file.write_text("boss\n")
    clock.now = 1.0
    assert not lets_in(door, "boss") and lets_in(door, "given")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: no such file"), ("# none\n\n", "has no key"), ("boss\n", "differ")],
)
def test_a_file_that_cannot_do_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequest, match=words) as caught:
        resolve_keys((), "boss", str(path))
    assert str(path) in caught.value.message


def test_the_file_may_be_named_by_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("OCTAVO_API_KEY_FILE", file.name)
    assert resolve_keys(("k",)) == (("k",), None, str(file)), "an ingress has another folder"


def test_a_server_takes_new_keys_while_it_runs(
    connected: Connect, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    engine = ScriptedEngine(says("x"))
    with connected(engine, api_key_file=str(file)) as http:

        def status(key: str) -> int:
            body = {"prompt": "x"}
            headers = {"Authorization": f"Bearer {key}"}
            return http.post("/v1/completions", json=body, headers=headers).status_code

        assert [status(key) for key in ("one", "two", "new")] == [200, 200, 401]
        file.write_text("new\ntwo\n")
        assert [status(key) for key in ("one", "two", "new")] == [401, 200, 200]
    one, two, still_two, new = (request.salt for request in engine.seen)
    assert two == still_two and len({one, two, new}) == 3, "whose prefixes may be found"
