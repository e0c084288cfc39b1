"""An engine whose tokens are written down beforehand, to force what a model will not do on demand:
a stop string across tokens, half a character, a fault between two tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from octavo.cluster.picture import Look
from octavo.cluster.playback.recorded import Part
from octavo.cluster.stats import EngineStats, Measured
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import EngineDead
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from tests.cluster.text_models import byte_level

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TOKENIZER = Tokenizer(byte_level(), eos_ids=[1], chat_template=TEMPLATE)
HANG = "wait until closed"

Step = TokenEvent | Exception | str
Script = Callable[[Request], Sequence[Step]]


class ScriptedEngine:
    """`EngineClient` that plays `script`. `seen` are all requests, `live` those not yet over, and
    `aborted` the samples that were given up, whose further events are left out."""

    def __init__(self, script: Script, *, max_model_len: int = 200, num_blocks: int = 101) -> None:
        self._script = script
        self._shape = (Capacity(num_blocks, 16), max_model_len)
        self.seen: list[Request] = []
        self.live: set[str] = set()
        self.aborted: list[tuple[str, int]] = []
        self.resets = 0
        self.looks: list[Look] = []
        self.parts: list[tuple[str, Part]] = []
        self.documents = [b'{"blocks":[]}']
        self.reason: str | None = None
        self.up = True

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        assert request.id not in self.live
        self.seen.append(request)
        self.live.add(request.id)
        try:
            for step in self._script(request):
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, str):
                    await asyncio.Event().wait()
                elif (request.id, step.index) not in self.aborted:
                    yield step
        finally:
            self.live.discard(request.id)

    def abort(self, request_id: str, index: int) -> None:
        assert request_id in self.live
        self.aborted.append((request_id, index))

    def stats(self) -> list[EngineStats]:
        capacity, length = self._shape
        waiting = EngineStats("0", capacity, length, 8, 0, 0, 0, 0, 0, 0.0, self.reason, Measured())
        return [waiting] if self.up else []

    async def ensure_up(self) -> None:
        """The reason counts from the first request on: until then a replica was there."""
        if not self.up or (self.seen and self.reason is not None):
            raise EngineDead(self.reason or "no replica is up")

    def fault(self) -> str | None:
        return self.reason

    async def reset_prefix_cache(self) -> int:
        self.resets += 1
        return len(self.documents)

    async def debug_blocks(self) -> list[bytes]:
        return self.documents

    async def debug_look(self, look: Look) -> bytes:
        self.looks.append(look)
        return b"a picture"

    async def debug_journal(self, replica: str, part: Part) -> bytes:
        self.parts.append((replica, part))
        return b"films"


async def until(condition: Callable[[], object]) -> None:
    """Waits until that is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def events(
    tokens: Sequence[int], finish: Finish = Finish.LENGTH, step: int = 1
) -> Callable[[Request], list[Step]]:
    """Every sample gets these, `step` tokens an event, each with the logprob -(its position + 1)
    and one runner-up; a `stop` ends with the end token."""

    def script(request: Request) -> list[Step]:
        samples = [
            _sample(request, index, tokens, finish, step) for index in range(request.sampling.n)
        ]
        return [event for together in zip(*samples, strict=True) for event in together]

    return script


def _sample(
    request: Request, index: int, tokens: Sequence[int], finish: Finish, step: int
) -> list[TokenEvent]:
    ids = [*tokens, 1] if finish is Finish.STOP else list(tokens)
    ids = ids[: request.sampling.max_tokens]
    played = []
    for start in range(0, max(1, len(ids)), step):
        run = ids[start : start + step]
        event = TokenEvent(request.id, run, cached_tokens=4, index=index)
        if request.sampling.logprobs is not None:
            event.logprobs = [
                Logprob(token, -1.0 - start - i, 1, [(token, -1.0 - start - i), (2, -50)])
                for i, token in enumerate(run)
            ]
        played.append(event)
    played[-1].finish = finish
    played[-1].stop_token = 1 if finish is Finish.STOP else None
    return played


def says(text: str, finish: Finish = Finish.STOP, step: int = 1) -> Script:
    """The engine generates this text."""
    return events(TOKENIZER.encode(text), finish, step)


def mortal(script: Script, *lives: int) -> Script:
    """The engine generates the same, but its first attempts end with its death, each after so many
    events; the next one goes on from what the request brings."""
    left = list(lives)

    def play(request: Request) -> Sequence[Step]:
        given = request.resumed or [[] for _ in range(request.sampling.n)]
        rest: list[Step] = []
        skipped = [0] * len(given)
        for event in script(request):
            assert isinstance(event, TokenEvent) and len(event.tokens) == 1
            before = given[event.index]
            if before is None:
                continue
            if skipped[event.index] < len(before):
                assert event.tokens == before[skipped[event.index] :][:1]
                skipped[event.index] += 1
                continue
            if request.resumed:
                event.cached_tokens = 0
            rest.append(event)
        return [*rest[: left.pop(0)], EngineDead("rank 0 died", "replica")] if left else rest

    return play
