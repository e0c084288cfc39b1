"""An engine whose tokens are written down beforehand, to force what a model will not do on demand:
a stop string across tokens, half a character, a fault between two tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from octavo.cluster.stats import EngineStats, Measured
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.config import Capacity
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
    """`EngineClient` that plays `script`. `seen` are all requests, `live` those not yet over."""

    def __init__(self, script: Script, *, max_model_len: int = 200, num_blocks: int = 101) -> None:
        self._script = script
        self._shape = (Capacity(num_blocks, 16), max_model_len)
        self.seen: list[Request] = []
        self.live: set[str] = set()
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
                else:
                    yield step
        finally:
            self.live.discard(request.id)

    def stats(self) -> list[EngineStats]:
        capacity, length = self._shape
        waiting = EngineStats("0", capacity, length, 8, 0, 0, 0, 0, 0, 0.0, self.reason, Measured())
        return [waiting] if self.up else []

    def fault(self) -> str | None:
        return self.reason


def events(
    tokens: Sequence[int], finish: Finish = Finish.LENGTH, step: int = 1
) -> Callable[[Request], list[Step]]:
    """`step` tokens an event, each with the logprob -(its position + 1) and one runner-up; a
    `stop` ends with the end token."""

    def script(request: Request) -> list[Step]:
        ids = [*tokens, 1] if finish is Finish.STOP else list(tokens)
        ids = ids[: request.sampling.max_tokens]
        played: list[Step] = []
        for start in range(0, max(1, len(ids)), step):
            run = ids[start : start + step]
            event = TokenEvent(request.id, run, cached_tokens=4)
            if request.sampling.logprobs is not None:
                event.logprobs = [
                    Logprob(
                        token, -1.0 - start - index, 1, [(token, -1.0 - start - index), (2, -50)]
                    )
                    for index, token in enumerate(run)
                ]
            played.append(event)
        last = played[-1]
        assert isinstance(last, TokenEvent)
        last.finish = finish
        last.stop_token = 1 if finish is Finish.STOP else None
        return played

    return script


def says(text: str, finish: Finish = Finish.STOP, step: int = 1) -> Script:
    """The engine generates this text."""
    return events(TOKENIZER.encode(text), finish, step)
