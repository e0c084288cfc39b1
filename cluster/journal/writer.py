"""Puts chunks into a pair of files on a thread of its own, and never keeps the engine waiting.

FILE is written; when it is full it becomes FILE.1, in place of the one before. What cannot be
written (a full disk, one that is too slow) ends the journal with a line in the log, not the engine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.records import MAGIC, Chunk, Piece, pack

logger = logging.getLogger(__name__)

MOST_PENDING = 64  # chunks that wait for the disk
PAUSE_SECONDS = 0.001  # behind each piece of a state


def previous(path: Path) -> Path:
    """Where the file before is kept."""
    return path.with_name(path.name + ".1")


class Writer:
    """Raises `JournalError` where `path` cannot be written or is another kind of file. A journal
    that is there becomes the one before: whoever restarts after a crash can still read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.grown = 0  # bytes of the file behind its first chunk, but for chunks that wait
        self.ended = False
        self._first = True  # what comes next is
        self._pending = threading.BoundedSemaphore(MOST_PENDING)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-journal")
        try:
            if path.exists():
                with path.open("rb") as there:
                    start = there.read(len(MAGIC))
                if start and start != MAGIC:
                    raise JournalError(
                        f"--journal {path}: this file is there and is no journal; name another"
                    )
            self._file = self._open()
        except OSError as error:
            raise JournalError(
                f"--journal {path}: it cannot be written ({error.strerror}); name another file"
            ) from None

    def put(self, chunk: Chunk) -> None:
        """Returns at once. Nothing may be added to it any more."""
        if not self.ended and self._take_turn():
            self._thread.submit(self._run, chunk)

    def rotate(self, chunk: Chunk, pieces: Iterator[Piece]) -> None:
        """Goes on in a new file that begins with these. Pieces are made by the thread, with a pause
        behind each, so that the engine need not wait for Python's lock."""
        self.grown = 0
        if not self.ended and self._take_turn():
            self._thread.submit(self._run, chunk, pieces)

    def close(self) -> None:
        """All that was put is written."""
        self._thread.shutdown(wait=True)
        self.ended = True
        self._file.close()

    def _take_turn(self) -> bool:
        if self._pending.acquire(blocking=False):
            return True
        self.give_up("the disk is too slow for it")
        return False

    def _run(self, chunk: Chunk, pieces: Iterator[Piece] | None = None) -> None:
        try:
            if self.ended:
                return
            if pieces is not None:
                self._file.close()
                self._file = self._open()
            packed = chunk.pack()
            self._file.write(packed)
            for piece in pieces or ():
                self._file.write(pack([piece]))
                time.sleep(PAUSE_SECONDS)
            self._file.flush()
            self.grown = 0 if self._first else self.grown + len(packed)
            self._first = False
        except OSError as error:
            self.give_up(error.strerror or str(error))
        except TypeError as error:  # of a piece
            self.give_up(str(error))
        finally:
            self._pending.release()

    def _open(self) -> BinaryIO:
        if self.path.exists():
            self.path.replace(previous(self.path))
        # It has token ids of prompts and answers: nobody else's to read.
        number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        file = os.fdopen(number, "wb")
        file.write(MAGIC)
        self._first = True
        return file

    def give_up(self, reason: str) -> None:
        """Nothing more is written."""
        if not self.ended:
            self.ended = True
            logger.error("the journal %s ends here: %s", self.path, reason)
