"""The load's end of the wire: one streamed request to an OpenAI server, timed where bytes arrive.

It must cost little, as it often shares a machine with the server: bodies are encoded before the
run, the time is taken once for each piece of the stream that arrives, and events are decoded into
typed structures, which skips what they do not name. `benchmarks/load_client.py` measures it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from octavo.cluster.bench.answers import Answer

SHOWN = 300  # characters of an error that a server wrote


class Delta(msgspec.Struct):
    """Of a chat."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def opens(self) -> bool:
        """Whether it only says who speaks, which is known before any token is."""
        brings = self.content or self.reasoning_content or self.reasoning or self.tool_calls
        return self.role is not None and not brings


class Choice(msgspec.Struct):
    """Of a completion (`text`) or of a chat (`delta`)."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Token counts by the server's own tokenizer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Stream:
    """Takes the pieces of one answer in, as they arrive."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._decode = msgspec.json.Decoder(Event).decode
        self._rest = b""
        self._last = 0.0  # when the last token came
        self._texts: list[str] = []
        self._ended = False

    def feed(self, piece: bytes, now: float) -> None:
        """Raises `msgspec.DecodeError` where an event is not JSON of the right shape."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self._ended = True
            else:
                self._take(self._decode(data), now)

    def finish(self) -> None:
        """After the last piece."""
        answer = self._answer
        answer.latency = max(0.0, self._last - answer.sent)
        answer.text = "".join(self._texts)
        if answer.error:
            return
        if not self._last:
            answer.error = "the answer had no token"
        elif not self._ended:
            answer.error = "the answer broke off"

    def _take(self, event: Event, now: float) -> None:
        answer = self._answer
        if event.error is not None:
            answer.error = f"the server ended the answer: {error_text(event.error)}"
        if event.usage is not None:
            answer.prompt_len = event.usage.prompt_tokens or answer.prompt_len
            answer.output_len = event.usage.completion_tokens or answer.output_len
        for choice in event.choices:
            if choice.finish_reason is not None:
                self._ended = True
            if choice.delta is not None and choice.delta.opens and not choice.finish_reason:
                continue
            delta = choice.delta
            self._texts.append((choice.text if delta is None else delta.content) or "")
            if not self._last:
                answer.ttft = now - answer.sent
            else:
                answer.itls.append(now - self._last)
            self._last = now


async def ask(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
) -> Answer:
    """Sends one request and reads the whole of its answer. What goes wrong is in the answer."""
    answer = Answer(sent=time.perf_counter())
    stream = Stream(answer)
    try:
        async with session.post(url, data=body, headers=headers) as response:
            if response.status != 200:
                said = await response.text(errors="replace")
                answer.error = f"{response.status} {response.reason}: {said[:SHOWN]}".strip()
                return answer
            async for piece in response.content.iter_any():
                stream.feed(piece, time.perf_counter())
        stream.finish()
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        answer.error = f"{type(error).__name__}: {error}".strip(": ")
    except msgspec.MsgspecError as error:
        answer.error = f"an event of the answer cannot be read: {error}"
    return answer


def error_text(error: Any) -> str:
    """What a server wrote of an error, as text."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])[:SHOWN]
    return str(error)[:SHOWN]
