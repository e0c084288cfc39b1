"""Reads journals, checking all of them: a file that is foreign or broken is one sentence.

A last chunk that was not wholly written, as when the process was killed, is passed over.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.recorder import scheduler_code
from octavo.cluster.journal.records import HEAD, MAGIC, MOST_CHUNK, Piece, Record, Start, unpack
from octavo.cluster.journal.state import thaw
from octavo.cluster.journal.writer import previous
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.scheduler import Scheduler

MOST_BLOCKS = 2**28
MOST_ROWS = 2**20


@dataclass(frozen=True, slots=True)
class Segment:
    """One file. `records` come one by one and raise `JournalError` where the file is broken."""

    path: Path
    start: Start
    records: Iterator[Record]

    @property
    def same_code(self) -> bool:
        """Whether the scheduler that recorded it is the one here."""
        return self.start.code == scheduler_code()

    def scheduler(self) -> Scheduler:
        """As it was when the file began."""
        start, capacity = self.start, self.start.capacity
        if start.state is not None:
            if not self.same_code:
                raise JournalError(
                    f"{self.path} begins amid the work of another version of the scheduler "
                    f"({start.code}, here is {scheduler_code()}); read it with that version"
                )
            return thaw(start.state, self._pieces())
        try:
            config = msgspec.convert(start.config, SchedulerConfig)
        except msgspec.ValidationError as error:
            raise JournalError(f"{self.path} has settings that are unknown here: {error}") from None
        if not (
            2 <= capacity.num_blocks <= MOST_BLOCKS
            and 0 <= capacity.num_host_blocks <= MOST_BLOCKS
            and capacity.block_size == config.block_size
            and config.max_num_seqs <= MOST_ROWS
        ):
            raise JournalError(f"{self.path} is of an engine that cannot be: {capacity}")
        return Scheduler(config, capacity)

    def _pieces(self) -> list[bytes]:
        found: list[bytes] = []
        for record in islice(self.records, self.start.pieces):
            if not isinstance(record, Piece):
                raise JournalError(f"{self.path} is broken: its state is not whole")
            found.append(record.content)
        if len(found) < self.start.pieces:
            raise JournalError(
                f"{self.path} had just been begun when its server ended; what came before is in "
                f"{previous(self.path)}"
            )
        return found


def segments(path: Path) -> Iterator[Segment]:
    """The file and the one before, where there is one, oldest first. Raises `JournalError`."""
    if not path.exists():
        raise JournalError(f"there is no journal {path}{_instead(path)}")
    for each in (previous(path), path):
        if each.exists():
            yield open_segment(each)


def _instead(path: Path) -> str:
    others = sorted(path.parent.glob(f"{path.name}.*"))
    replicas = [str(other) for other in others if other.suffix != ".1"]
    if replicas:
        return f", but there is one a replica: {', '.join(replicas)}"
    return f"; octavo serve --journal {path} writes one"


def open_segment(path: Path) -> Segment:
    """One file alone. Raises `JournalError`."""
    records = _records(path)
    start = next(records, None)
    if start is None:
        raise JournalError(f"{path} is empty: nothing was written before its server ended")
    if not isinstance(start, Start):
        raise JournalError(f"{path} is broken: it does not say where it begins")
    return Segment(path, start, records)


def _records(path: Path) -> Iterator[Record]:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise JournalError(f"{path} is not a journal of octavo serve --journal")
            while (body := _chunk(path, file)) is not None:
                try:
                    records = unpack(body)
                except (ValueError, msgspec.MsgspecError) as error:
                    raise JournalError(f"{_where(path, file, body)}: {error}") from None
                yield from records
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from None


def _chunk(path: Path, file: BinaryIO) -> bytes | None:
    """None at the end, and where the last one is torn."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    size, checksum = HEAD.unpack(head)
    body = file.read(min(size, MOST_CHUNK))
    if len(body) < size and not file.read(1):
        return None
    if zlib.crc32(body) != checksum:
        raise JournalError(f"{_where(path, file, body)}: the checksum is of other bytes")
    return body


def _where(path: Path, file: BinaryIO, body: bytes) -> str:
    return f"{path} is broken at byte {file.tell() - len(body)}"
