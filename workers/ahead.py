"""Steps that are begun before the one before has ended: on a GPU, which computes beside Python.

A step is begun by giving the device all its work, and finished when its tokens are on the host. In
between the next one can be begun, so that the device finds it when it is done with this one; the
tokens of this one it reads on the device. `octavo.workers.flight` has what is known meanwhile.

Where the host must see the tokens of a row at once, as penalties do, its steps are begun and waited
for in one: the device then waits for Python, and nothing else is different.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from octavo.scheduler.errors import OutOfStep
from octavo.workers.member import Member

IN_FLIGHT = 2  # steps that were begun: one computes, and one waits for it on the device


class Begun(Protocol):
    """A step that was begun."""

    def done(self) -> bool:
        """Whether finishing it would not wait."""

    def wait(self) -> None:
        """Until it is done. May be called from another thread."""


class Launcher(Member, Protocol):
    """A member that computes beside Python. Steps are begun in order, at most `IN_FLIGHT` at a
    time, and finished in order."""

    def begin(self, raw: bytes) -> Any:
        """A `Begun`. Raises `OutOfStep` before anything is touched."""

    def finish(self, begun: Any) -> bytes | None:
        """What `execute` would have answered; waits until the step is done."""


def launcher_of(member: Member) -> Launcher | None:
    """The member, if it runs ahead."""
    return cast(Launcher, member) if getattr(member, "runs_ahead", False) else None


class Channel(Protocol):
    """Of `octavo.workers.channel.WorkerChannel`, what a launcher needs."""

    @property
    def received(self) -> int: ...

    def plans(self, meanwhile: Callable[[], bool]) -> Iterator[bytes]: ...

    def answer(self, result: bytes, number: int) -> None: ...

    def stray(self, expected: int, got: int) -> None: ...


def run_ahead(launcher: Launcher, channel: Channel) -> None:
    """Executes a channel's plans until it ends. A result is sent within a millisecond after its
    step is done, also where no other plan comes."""
    aloft: deque[tuple[int, Begun]] = deque()

    def land() -> None:
        number, begun = aloft.popleft()
        result = launcher.finish(begun)
        if result is not None:
            channel.answer(result, number)

    def meanwhile() -> bool:
        if aloft and aloft[0][1].done():
            land()
        return bool(aloft)

    for plan in channel.plans(meanwhile):
        try:
            aloft.append((channel.received, launcher.begin(plan)))
        except OutOfStep as gap:
            while aloft:  # whatever was executed is answered first
                land()
            channel.stray(gap.expected, gap.got)
        if len(aloft) == IN_FLIGHT:
            land()
    while aloft:
        land()
