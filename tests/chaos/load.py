"""Clients that ask, read, sometimes hang up, and judge what they got."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from tests.chaos.answers import Answer
from tests.chaos.questions import Question

PATIENCE_SECONDS = 150.0  # without a byte: longer than the server's own patience
LEAVING = 0.12  # the share of calls whose client does not stay to the end
LONGEST_PAUSE_SECONDS = 0.5
KEPT_FAULTS = 20


@dataclass
class Tally:
    """What became of the calls. `faults` are the first of those that should not be."""

    counts: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    faults: list[str] = field(default_factory=list)

    def note(self, outcome: str, fault: str = "") -> None:
        self.counts[outcome] += 1
        if fault and len(self.faults) < KEPT_FAULTS:
            self.faults.append(f"{time.strftime('%H:%M:%S')} {outcome}: {fault}")

    @property
    def bad(self) -> int:
        return self.counts["failed"] + self.counts["wrong"]


@dataclass
class Reading:
    """One call. `failure` is why it ended before its end, `left` that its client wanted no more;
    `pieces` counts the stream's chunks."""

    answer: Answer = field(default_factory=Answer)
    failure: str = ""
    pieces: int = 0
    left: bool = False


class Load:
    """Clients of the server at `url` that are told apart by number. `excused` says of a call that
    failed, by when it began and ended, whether that was no fault of what is tested."""

    def __init__(
        self,
        url: str,
        questions: Sequence[Question],
        models: Sequence[str],
        seed: int,
        excused: Callable[[float, float], bool],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.tally = Tally()
        self._questions = questions
        self._models = models
        self._seed = seed
        self._excused = excused
        self._stop = False
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=PATIENCE_SECONDS,
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )

    async def run(self, clients: int) -> None:
        """Until `stop`, and until each has read its last answer."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    group.create_task(self._client(random.Random(f"{self._seed} {number}")))
        finally:
            await self._http.aclose()

    def stop(self) -> None:
        self._stop = True

    async def leave_out_ties(self, at_once: int) -> list[str]:
        """Asks each model each question while nothing is disturbed, and forgets the questions whose
        answers are not the oracle's. It has one rank: the sums of two end in other bits, which
        decides where two tokens are as good as equally likely. Returns what was said wrongly."""

        seats = asyncio.Semaphore(at_once)

        async def check(question: Question) -> str | None:
            for model in self._models:
                reading, body = Reading(), question.body(model, stream=False)
                async with seats:
                    await self._read(question.path, body, reading, None)
                differs = reading.failure or reading.answer.differs(question.right)
                if differs:
                    return f"{question.name} of {model}: {differs}"
            return None

        found = await asyncio.gather(*map(check, self._questions))
        pairs = zip(self._questions, found, strict=True)
        self._questions = [question for question, differs in pairs if differs is None]
        return [differs for differs in found if differs is not None]

    async def _client(self, source: random.Random) -> None:
        while not self._stop:
            question = source.choice(self._questions)
            body = question.body(
                source.choice(self._models), question.streamable and source.random() < 0.8
            )
            leaves = source.random() < LEAVING
            patience = (source.randrange(1, 60), source.uniform(0.02, 1.5)) if leaves else None
            await self.ask(question, body, patience)
            await asyncio.sleep(source.uniform(0, LONGEST_PAUSE_SECONDS))

    async def ask(
        self,
        question: Question,
        body: dict[str, object],
        patience: tuple[int, float] | None = None,
    ) -> None:
        """One call, by a client that leaves after so many chunks or seconds, if it has a limit."""
        reading = Reading()
        began = time.monotonic()
        most, seconds = patience or (None, None)
        try:
            async with asyncio.timeout(seconds):
                await self._read(question.path, body, reading, most)
        except TimeoutError:
            reading.left = True
        ended = time.monotonic()
        what = f"{question.name} of {body['model']} after {ended - began:.1f} s"
        whole = not reading.failure and not reading.left
        if whole:
            differs = reading.answer.differs(question.right)
        else:
            differs = reading.answer.strays(question.right)
        if differs is not None:
            self.tally.note("wrong", f"{what}: {differs}")
        elif whole:
            self.tally.note("right")
            self.tally.longest = max(self.tally.longest, ended - began)
        elif reading.left:
            self.tally.note("left by its client")
        elif self._excused(began, ended):
            self.tally.note("lost with an ingress")
        else:
            self.tally.note("failed", f"{what}, {reading.pieces} chunks: {reading.failure}")

    async def _read(
        self, path: str, body: dict[str, object], reading: Reading, most: int | None
    ) -> None:
        """To the end, or until `most` chunks were read."""
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    reading.failure = f"status {response.status_code}: {text[:200]}"
                elif "stream" not in body:
                    reading.answer.take(json.loads(await response.aread()))
                else:
                    await self._follow(response, reading, most)
        except httpx.HTTPError as error:
            reading.failure = f"{type(error).__name__}: {error}"

    async def _follow(self, response: httpx.Response, reading: Reading, most: int | None) -> None:
        async for line in response.aiter_lines():
            if not line:
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            piece = json.loads(data)
            if "error" in piece:
                reading.failure = f"an error event: {piece['error']['message']}"
                return
            reading.answer.take(piece)
            reading.pieces += 1
            if reading.pieces == most:
                reading.left = True
                return
        reading.failure = "the stream ended without its end"
