"""What comes of a step, for those whom it moved."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from octavo.scheduler.request import TokenEvent


class StepEvents(msgspec.Struct, array_like=True):
    """One event for each sample that a step moved. Nearly all get a token and nothing else: these
    lie in columns, request `names[i]` having got `tokens[i]`, so that no object has to be made for
    each of thousands of them, sent and made again. Iterating makes them, one by one."""

    others: list[TokenEvent] = []
    names: list[str] = []
    tokens: list[int] = []

    def __post_init__(self) -> None:
        if len(self.names) != len(self.tokens):
            raise ValueError("names and tokens are not as many")

    def __len__(self) -> int:
        return len(self.others) + len(self.names)

    def __iter__(self) -> Iterator[TokenEvent]:
        for name, token in zip(self.names, self.tokens, strict=False):
            yield TokenEvent(name, [token])
        yield from self.others
