"""Messages between processes: none blocks its writer, and none is missing between two others."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from octavo.cluster.distributed.mailbox import Inbox, Outbox

NODE = "127.0.0.1"
NOBODY = f"{'0' * 40}@tcp://{NODE}:1"  # an address at which nobody listens


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 20))


class Way:
    """A way to an inbox, which can be cut. New ones to the same port lead there too."""

    def __init__(self, port):
        self._port = port
        self._writers = []

    async def __call__(self, reader, writer):
        there_reader, there_writer = await asyncio.open_connection(NODE, self._port)
        self._writers += [writer, there_writer]
        await asyncio.gather(
            self._pump(reader, there_writer),
            self._pump(there_reader, writer),
            return_exceptions=True,
        )

    async def _pump(self, reader, writer):
        while data := await reader.read(4096):
            writer.write(data)

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()


def test_a_reader_that_does_not_read_costs_messages_and_not_the_writer(monkeypatch):
    monkeypatch.setattr("octavo.cluster.distributed.mailbox.QUEUED_MESSAGES", 10)
    outbox = Outbox(NOBODY)
    sent = [outbox.send(b"x") for _ in range(1000)]
    outbox.close()
    assert sent[0] and not sent[-1]


def test_a_reader_that_is_not_there_is_known_not_to_be():
    async def test():
        with closing(Outbox(NOBODY)) as outbox:
            assert outbox.send(b"on its way, for all one knows")
            await until(lambda: outbox.connected is False)

    run(test())


def test_a_writer_that_is_gone_is_told_from_another():
    async def test():
        with closing(Inbox(NODE)) as inbox:
            ways = {}
            with closing(Outbox(inbox.address)) as stays:
                for outbox, name in ((stays, b"stays"), (Outbox(inbox.address), b"goes")):
                    outbox.send(name)
                    letter = await inbox.receive()
                    ways[letter.body] = letter.way
                outbox.close()
                assert await inbox.hung_up() == ways[b"goes"] != ways[b"stays"]
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(inbox.hung_up(), 0.1)
                stays.send(b"here")
                assert await inbox.receive() == (b"here", ways[b"stays"])

    run(test())


def test_a_connection_that_was_lost_brings_nothing_more():
    """What was lost with it would be missing in the middle of an answer."""

    async def test():
        with closing(Inbox(NODE)) as inbox:
            key, port = inbox.address.rpartition("@")[0], int(inbox.address.rpartition(":")[2])
            way = Way(port)
            async with await asyncio.start_server(way, NODE, 0) as server:
                there = server.sockets[0].getsockname()[1]
                with closing(Outbox(f"{key}@tcp://{NODE}:{there}")) as outbox:
                    outbox.send(b"1")
                    assert (await inbox.receive()).body == b"1"
                    await until(lambda: outbox.connected)
                    way.cut()
                    await until(lambda: outbox.connected is False)
                    assert not outbox.send(b"3"), "though somebody listens there"
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(inbox.receive(), 0.3)

    run(test())
