"""Short lines from the actors to the terminal that started them: progress, deaths, reasons.

Goes past Ray's log forwarding, so that a terminal shows one clear line and not a flood. Where no
terminal listens, nothing is sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.cluster.distributed.mailbox import Inbox, Outbox

Level = Literal["info", "warning", "fatal"]


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """`fatal`: the server cannot start. `param` then names the setting to change, if it is one."""

    level: Level
    source: str
    text: str
    param: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Notice)


class Notices:
    """Says things in the name of one `source`. `address` is a `NoticeBoard`'s, or None."""

    def __init__(self, address: str | None, source: str) -> None:
        self._outbox = Outbox(address) if address is not None else None
        self._source = source

    def say(self, text: str, level: Level = "info", param: str = "") -> None:
        if self._outbox is not None:
            self._outbox.send(_encoder.encode(Notice(level, self._source, text, param)))

    def close(self) -> None:
        if self._outbox is not None:
            self._outbox.close()


class NoticeBoard:
    """Where notices arrive."""

    def __init__(self, node: str) -> None:
        self._inbox = Inbox(node)
        self.address = self._inbox.address

    async def receive(self) -> Notice:
        return _decoder.decode((await self._inbox.receive()).body)

    def close(self) -> None:
        self._inbox.close()
