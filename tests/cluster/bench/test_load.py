"""Requests at their times, over connections that a server may end while they are idle."""

import asyncio
import contextlib
import json

import pytest

from octavo.cluster.bench import target
from octavo.cluster.bench.load import send_all
from octavo.cluster.bench.target import Target

KEPT = 1.0  # seconds that the server below keeps an idle connection
EVENT = json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
BODY = f"data: {EVENT}\n\ndata: [DONE]\n\n".encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def speak(reader, writer):
    """Ends a connection that was idle for too long at the worst moment: as a request comes."""
    clock = asyncio.get_running_loop().time
    answered = None
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if answered is not None and clock() - answered > KEPT:
                break
            writer.write(MISSING if head.startswith(b"GET") else ANSWER)
            answered = clock()
    writer.close()


@pytest.mark.parametrize(("idle_seconds", "failed"), [(KEPT / 3, 0), (60, 1)])
def test_an_idle_connection_is_not_used_for_longer_than_servers_keep_it(
    monkeypatch, idle_seconds, failed
):
    monkeypatch.setattr(target, "IDLE_SECONDS", idle_seconds)

    async def run():
        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            asked = Target(base, f"{base}/v1/completions", {})
            return await send_all(asked, [b"{}"] * 2, [0.0, 2 * KEPT])

    errors = [each.error for each in asyncio.run(run()).answers if each.error]
    assert len(errors) == failed, errors
