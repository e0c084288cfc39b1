"""What a client gets for a set of streamed calls of every kind, to be compared between two runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

MODEL = "tiny"
ADAPTER = "leaf"  # of the model, where a server has one
_CUT = (httpx.TransportError, openai.APIConnectionError)
LENGTH = 400

# The fields of completions. Prompts are longer than a block: there is something to find in a cache,
# which must not show in the usage of a request that was moved.
CALLS: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "An octavo is a sheet that is folded three times", "temperature": 0},
    "seeded": {"prompt": "A quarto is a sheet that is folded twice, and", "seed": 7},
    "samples": {"prompt": "A folio is a sheet that is folded once, which", "n": 3, "seed": 11},
    "logprobs": {
        "prompt": "A sextodecimo is a sheet that is folded four times",
        "temperature": 0,
        "logprobs": 3,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
    },
    "penalties": {
        "prompt": "A duodecimo is a sheet that is folded into twelve",
        "seed": 3,
        "top_p": 0.9,
        "extra_body": {"repetition_penalty": 1.1, "min_tokens": 50, "top_k": 40},
    },
}


@dataclass
class Answer:
    """A stream put together, choice by choice."""

    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, chunk: Any) -> None:
        for choice in chunk.choices:
            self.texts[choice.index] = self.texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                self.ends[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                self.tokens += choice.logprobs.tokens
                self.logprobs += choice.logprobs.token_logprobs
        if chunk.usage is not None:
            self.usage = chunk.usage.model_dump()


def stream(client: openai.OpenAI, salt: str, fields: dict[str, Any]) -> Iterator[Any]:
    """The chunks of one call. Nothing of it is found in a cache, unless `salt` was used before."""
    extra = {"ignore_eos": True, **fields.get("extra_body", {}), "cache_salt": salt}
    return iter(
        client.completions.create(
            **{"model": MODEL, "max_tokens": LENGTH, **fields, "extra_body": extra},
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Request-Id": "all-have-this-one"},
        )
    )


class Asking:
    """Calls under way, each in a thread. Waits until each has begun to answer."""

    def __init__(
        self, client: openai.OpenAI, salt: str, calls: dict[str, dict[str, Any]], copies: int = 1
    ) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(len(calls) * copies)
        self._begun: list[threading.Event] = []
        self._futures: list[tuple[str, Future[Answer]]] = []
        for copy in range(copies):
            for name, fields in calls.items():
                begun = threading.Event()
                own = f"{salt} {copy} {name}"
                self._begun.append(begun)
                self._futures.append((name, self._pool.submit(self._one, own, fields, begun)))
        for begun in self._begun:
            assert begun.wait(60), "a stream did not begin"

    def _one(self, salt: str, fields: dict[str, Any], begun: threading.Event) -> Answer:
        answer = Answer()
        try:
            for number, chunk in enumerate(stream(self._client, salt, fields)):
                answer.take(chunk)
                if number == 5:
                    begun.set()
        finally:
            begun.set()
        return answer

    def answers(self, seconds: float) -> list[tuple[str, Answer]]:
        """By the name of the call. Raises what the first one that failed got."""
        done = [(name, future.result(seconds)) for name, future in self._futures]
        self._pool.shutdown()
        return done

    def survivors(self, seconds: float) -> list[tuple[str, Answer]]:
        """Those whose connection was not cut."""
        self._futures = [
            (name, future)
            for name, future in self._futures
            if not isinstance(future.exception(seconds), _CUT)
        ]
        return self.answers(seconds)


def assert_same(answer: Answer, expected: Answer, name: str) -> None:
    """To the letter; log-probabilities up to what the order of a sum changes."""
    assert answer.texts == expected.texts, name
    assert answer.ends == expected.ends, name
    assert answer.usage == expected.usage, name
    assert answer.tokens == expected.tokens, name
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4), name
