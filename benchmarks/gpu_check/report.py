"""What a part of the check found: single checks, figures, and why it could not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


class CannotRun(Exception):
    """This machine, or what is installed on it, does not allow a part; the message says why."""


@dataclass
class Report:
    """Of one part. `failures` is empty where all was right, `missed` where all was quick enough."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, fine: bool, found: object = "") -> None:
        """Notes one check; `found` says what was seen where it failed."""
        if fine:
            self.passed += 1
        else:
            self.failures.append(f"{name}: {found}" if found != "" else name)

    def aim(self, name: str, met: bool, found: object) -> None:
        """Notes whether a figure is what it should be; one that is not is no failure."""
        if not met:
            self.missed.append(f"{name}: {found}")

    def attempt(self, name: str, work: Callable[[], None]) -> None:
        """Runs checks of which one that raises must not take the others along."""
        try:
            work()
        except CannotRun:
            raise
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {first_line(error)}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
