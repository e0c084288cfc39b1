"""What can be wrong with a journal."""

from __future__ import annotations

from octavo.scheduler.errors import InvalidRequest


class JournalError(InvalidRequest):
    """A file that is no journal, or not one that can be read here. One sentence says why."""

    def __init__(self, message: str) -> None:
        super().__init__("journal", message)

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        return InvalidRequest, (self.param, self.message)
