"""Files that are foreign, broken or half written, and what is not in any."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import msgspec
import pytest

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.reader import segments
from octavo.cluster.journal.records import HEAD, MAGIC, Arrival, Record, Reset, Start, pack
from octavo.cluster.journal.replay import replay
from octavo.cluster.journal.state import freeze, thaw
from octavo.cluster.journal.writer import Writer
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.scheduler import Scheduler
from tests.cluster.journal.driving import Recorded
from tests.scheduler.simulation import request


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def recorded(path: Path) -> bytes:
    engine = Recorded(path, num_blocks=64)
    for number in range(5):
        engine.add(request(f"r{number}", [number] * 9, 5))
        engine.run()
        engine.recorder.settle(engine.now, idle=True)
    engine.close()
    return path.read_bytes()


def start(**changes: object) -> Start:
    config = dataclasses.asdict(SchedulerConfig(64))
    given = Start(config, Capacity(9, 16), "code", "r", "run", 0.0, 0.0)
    return msgspec.structs.replace(given, **changes)


def complaint(path: Path) -> str:
    with pytest.raises(JournalError) as caught:
        list(replay(path))
    message = str(caught.value)
    assert message.count("\n") == 0
    return message


@pytest.mark.parametrize("cut", [1, 7, 9, 60])
def test_a_torn_end_is_passed_over(path: Path, cut: int) -> None:
    whole = recorded(path)
    (complete,) = replay(path)
    path.write_bytes(whole[:-cut])
    (outcome,) = replay(path)
    assert outcome.difference is None and 0 < outcome.plans < complete.plans


def test_no_such_file(path: Path) -> None:
    words = f"there is no journal {path}; octavo serve --journal {path} writes one"
    assert complaint(path) == words


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04" * 40, MAGIC.replace(b"1", b"2")])
def test_a_foreign_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert complaint(path) == f"{path} is not a journal of octavo serve --journal"


def test_an_empty_journal(path: Path) -> None:
    path.write_bytes(MAGIC)
    assert "is empty" in complaint(path)


def test_a_changed_byte(path: Path) -> None:
    whole = bytearray(recorded(path))
    whole[len(MAGIC) + 100] ^= 1
    path.write_bytes(whole)
    assert complaint(path).startswith(f"{path} is broken at byte {len(MAGIC) + HEAD.size}: the ")


def chunk(body: bytes) -> bytes:
    return HEAD.pack(len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "body",
    [b"", b"no deflate", zlib.compress(b"\xc1"), zlib.compress(msgspec.msgpack.encode([[1]]))],
)
def test_a_chunk_of_something_else(path: Path, body: bytes) -> None:
    path.write_bytes(MAGIC + chunk(body))
    assert "is broken at byte" in complaint(path)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (Reset(), "does not say where it begins"),
        (start(config={"max_model_len": "x"}), "settings that are unknown here"),
        (start(capacity=Capacity(2**40, 16)), "of an engine that cannot be"),
        (start(capacity=Capacity(9, 8)), "of an engine that cannot be"),
        (start(state=b"x"), "another version of the scheduler (code, here is"),
    ],
)
def test_a_start_that_cannot_be(path: Path, first: Record, words: str) -> None:
    path.write_bytes(MAGIC + pack([first]))
    assert words in complaint(path)


def state(*nodes: object) -> bytes:
    return msgspec.msgpack.encode(nodes)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        state(),
        state(("list", "", [])),
        state(("object", "os.system", [[], []])),
        state(("object", "octavo.scheduler.scheduler.Scheduler", [["__class__"], [1]])),
        state(("object", "octavo.scheduler.sequence.Sequence", [["other"], [1]])),
        state(("struct", "octavo.scheduler.scheduler.Scheduler", b"")),
        state(("list", "", [[7]])),
        state(("wonder", "octavo.scheduler.scheduler.Scheduler", 0)),
        state(("large list", "", [[0, 1]])),
        state(("large array", "wonder", [[0, 1]])),
        state(("large dict", "", [3])),
    ],
)
def test_a_state_of_something_else(raw: bytes) -> None:
    with pytest.raises(JournalError):
        thaw(raw, [])


def test_a_state_that_is_no_plain_data_is_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(64), Capacity(9, 16))
    scheduler.counters.resumed = print  # type: ignore[assignment]
    with pytest.raises(TypeError, match="no plain data"):
        freeze(scheduler)


def test_a_later_version_without_a_state_can_still_be_replayed(path: Path) -> None:
    recorded(path)
    (segment,) = segments(path)
    records: list[Record] = [msgspec.structs.replace(segment.start, code="old"), *segment.records]
    path.write_bytes(MAGIC + pack(records))
    (outcome,) = replay(path)
    assert outcome.difference is None and not outcome.same_code and outcome.plans > 10


def test_no_text_is_in_it_and_nobody_else_may_read_it(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(
        request("r", [1, 2, 3], 2, grammar=Grammar("json", '{"secret": 1}'), stop=("hidden",))
    )
    engine.run()
    engine.close()
    (segment,) = segments(path)
    (arrival,) = (each for each in segment.records if isinstance(each, Arrival))
    sampling = arrival.request.sampling
    assert (sampling.grammar, sampling.stop, sampling.bad_words) == (None, (), ())
    assert arrival.request.prompt == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_there_is_kept_and_a_foreign_file_is_not_written_over(path: Path) -> None:
    whole = recorded(path)
    Writer(path).close()
    assert path.with_name("journal.1").read_bytes() == whole
    path.write_text("my thesis")
    with pytest.raises(JournalError, match="is there and is no journal; name another"):
        Writer(path)
    assert path.read_text() == "my thesis"
    with pytest.raises(JournalError, match="cannot be written"):
        Writer(path.parent / "nowhere" / "journal")


def test_a_full_disk_ends_the_journal_and_not_the_engine(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.recorder._writer._thread.submit(lambda: None).result()
    engine.recorder._writer._file.close()
    engine.recorder._writer._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    for number in range(2):
        engine.add(request(f"r{number}", [number] * 9, 5))
        engine.run()
        engine.recorder.settle(engine.now, idle=True)
        engine.recorder._writer._thread.submit(lambda: None).result()
    assert not engine.scheduler.live_requests
    engine.close()
    assert caplog.text.count("ends here: No space left on device") == 1
