"""Commands that run beside this process, each with everything that it starts.

They are paused and ended by handles that were taken while they lived, never by name, and they are
ended however this process leaves its `with` block.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]

END_SECONDS = 60.0
LOG_LINES = 15


class Failed(Exception):
    """A command ended when it should not have; the message says what it said last."""


class Running:
    """One command. With `talks`, lines go in and out through `ask`; what it prints otherwise is in
    `log`. It gets a session of its own, so that a Ctrl-C in the terminal is ours alone to pass on.
    """

    def __init__(
        self,
        command: Sequence[object],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        talks: bool = False,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else output,
                stderr=output,
                text=True,
                env={**_surroundings(), **(environment or {})},
                cwd=log.parent,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises `Failed` once the command has ended with an error, or `talks` and has ended."""
        status = self._process.poll()
        if status is not None and (status or self._process.stdin):
            raise self.failure(f"ended with status {status}")

    def failure(self, what: str) -> Failed:
        last = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return Failed("\n".join([f"{self.log.stem} {what}; its log, {self.log}, ends in:", *last]))

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `hear` then says why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self) -> str:
        """The next line. Raises `Failed` where there will be none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure(f"ended with status {self._process.wait()}")
        return line

    def pause(self) -> None:
        """Stops every process of it where it is; each keeps its memory and connections."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Resumed for as long as the block lasts."""
        self.resume()
        yield
        self.pause()

    def stop(self) -> None:
        """With Ctrl-C or the end of input; what is left after a minute is killed."""
        family = self._tree()
        if self.alive():
            self.resume()
            if self._process.stdin:  # one that listens ends with what it hears
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
            else:
                os.killpg(self._process.pid, signal.SIGINT)
        try:
            psutil.wait_procs(family, END_SECONDS)
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _tree(self) -> list[psutil.Process]:
        """Itself and all below it; nothing once it was waited for."""
        if self._process.returncode is not None:
            return []
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _surroundings() -> dict[str, str]:
    """Without what importing Octavo set for its own threads: no peer is to be slowed by it."""
    return {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}


def ended_within(running: Running, seconds: float) -> bool:
    """Sleeps until the command has ended, at most `seconds`; whether it has."""
    deadline = time.monotonic() + seconds
    while running.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
