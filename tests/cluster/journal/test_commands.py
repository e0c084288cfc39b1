"""`octavo replay` and `octavo why`, and the flags that turn recording on."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from octavo.cluster.cli import flags
from octavo.cluster.cli.main import main
from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.wire import decode_error, encode_error
from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.reader import segments
from octavo.cluster.journal.records import MAGIC, pack
from octavo.cluster.journal.settings import JournalSettings
from octavo.scheduler.errors import InvalidRequest
from tests.cluster.journal.driving import Recorded, live_randomly
from tests.scheduler.simulation import request

Said = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    engine = Recorded(tmp_path / "journal")
    live_randomly(engine, random.Random(2), 30)
    engine.add(request("mine", [1, 2, 3], 4))
    engine.run()
    engine.close()
    return tmp_path / "journal"


def test_equal_plans(path: Path, capsys: Said) -> None:
    assert main(["replay", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path}: ") and said.endswith("requests, all equal\n")


def test_another_plan_and_another_version(path: Path, capsys: Said) -> None:
    (segment,) = segments(path)
    config = segment.start.config | {"max_num_batched_tokens": 7}
    start = msgspec.structs.replace(segment.start, config=config, code="old")
    path.write_bytes(MAGIC + pack([start, *segment.records]))
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert "plans for" in said and "are equal, then step " in said
    assert said.endswith("(recorded by another version of the scheduler)\n")
    assert main(["why", "mine", str(path)]) == 2
    assert "octavo: error: no request 'mine' is in " in capsys.readouterr().err


def test_why(path: Path, capsys: Said) -> None:
    assert main(["why", "mine", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("request mine\n") and "it ran: 6 tokens computed" in said


@pytest.mark.parametrize("command", [["replay"], ["why", "x"]])
def test_no_journal(tmp_path: Path, capsys: Said, command: list[str]) -> None:
    path = tmp_path / "journal"
    assert main([*command, str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"octavo: error: there is no journal {path}; octavo")
    path.with_name("journal.abc").touch()
    path.with_name("journal.abc.1").touch()
    assert main([*command, str(path)]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"{path}, but there is one a replica: {path}.abc\n")


def test_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = flags.parse(["serve", "--journal", "j", "--journal-max-bytes", "2MiB"])
    assert (given.journal, given.journal_max_bytes) == (str(tmp_path / "j"), 2 * 2**20)
    assert flags.parse(["serve"]).journal is None


def test_settings() -> None:
    names = ("m",)
    config = EngineConfig("/m", names, journal="/j", journal_max_bytes=2**20)
    assert config.journal_settings("r") == JournalSettings(Path("/j.r"), 2**20, "r")
    assert config.journal_settings() == JournalSettings(Path("/j"), 2**20)
    assert EngineConfig("/m", names).journal_settings() is None
    with pytest.raises(InvalidRequest, match="'j' is relative to no known place; give the whole"):
        EngineConfig("/m", names, journal="j")
    with pytest.raises(InvalidRequest, match="--journal-max-bytes must be at least 1048576, got 5"):
        EngineConfig("/m", names, journal_max_bytes=5)


def test_a_replica_tells_others_what_is_wrong_with_its_journal() -> None:
    error = decode_error(encode_error(JournalError("--journal /x: it cannot be written")))
    assert isinstance(error, InvalidRequest)
    assert (error.param, str(error)) == ("journal", "--journal /x: it cannot be written")
