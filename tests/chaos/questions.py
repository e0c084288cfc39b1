"""Calls of every kind, drawn from a seed, and their right answers from an engine that nobody
disturbs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.answers import Answer
from tests.e2e.server import Server

ONE = "single"  # the model's name where the right answers come from
ANSWER_SECONDS = 300.0
WORDS = "sheet fold page leaf book press ink type quire gutter margin spine cover plate"


@dataclass(frozen=True, slots=True)
class Question:
    """`fields` lack the model's name and whether to stream."""

    name: str
    path: str
    fields: dict[str, Any]
    right: Answer = field(default_factory=Answer)
    streamable: bool = True

    def body(self, model: str, stream: bool) -> dict[str, Any]:
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {**self.fields, **more, "model": model}


def draw(seed: int, each: int) -> list[Question]:
    """So many of each kind, without their answers."""
    source = random.Random(seed)
    questions = []
    for number in range(each):
        for name, make in KINDS.items():
            path, fields = make(source)
            streamable = not fields.get("use_beam_search")
            questions.append(Question(f"{name} {number}", path, fields, streamable=streamable))
    return questions


def answer_all(questions: list[Question], model: Path, log: Path) -> list[Question]:
    """The questions with their right answers, and those that stop at a string that lies far inside
    an answer. Each is asked alone, of one engine in one process."""
    server = Server(log, str(model), "--served-model-name", ONE, "--dtype", "float32", *LOCAL)
    try:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=ANSWER_SECONDS) as client:
            known = [replace(each, right=_ask(client, each)) for each in questions]
            stopping = [
                _stopping(client, each, number) for number, each in enumerate(known) if _long(each)
            ]
            return [*known, *stopping]
    finally:
        server.end()


LOCAL = ("--executor", "local", "--kv-cache-memory-bytes", "16MiB")


def _ask(client: httpx.Client, question: Question) -> Answer:
    response = client.post(question.path, json=question.body(ONE, stream=False))
    assert response.status_code == 200, response.text
    answer = Answer()
    answer.take(response.json())
    return answer


def _long(question: Question) -> bool:
    choices = question.right.choices.values()
    return question.streamable and all(len(choice.text) > 250 for choice in choices)


def _stopping(client: httpx.Client, question: Question, number: int) -> Question:
    """The same, until a string that one of its choices has behind its middle."""
    texts = [choice.text for choice in question.right.choices.values()]
    text = texts[number % len(texts)]
    start = len(text) * 2 // 3
    fields = {**question.fields, "stop": [text[start : start + 16]]}
    asked = replace(question, name=f"{question.name}, stopped", fields=fields)
    return replace(asked, right=_ask(client, asked))


def _prompt(source: random.Random, words: int) -> str:
    """Half of them begin alike, so that some of it is found in a cache."""
    begin = "An octavo is a sheet that is folded three times, and then " * source.randrange(2)
    return begin + " ".join(source.choices(WORDS.split(), k=words))


def _greedy(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, temperature=0)


def _seeded(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, seed=source.randrange(1000), top_p=0.95)


def _samples(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, seed=source.randrange(1000), n=3)


def _scored(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, temperature=0, logprobs=3, frequency_penalty=0.3)


def _penalized(source: random.Random) -> tuple[str, dict[str, Any]]:
    seed = source.randrange(1000)
    return _completion(source, seed=seed, repetition_penalty=1.1, top_k=40, min_tokens=50)


def _several(source: random.Random) -> tuple[str, dict[str, Any]]:
    prompts = [_prompt(source, 12) for _ in range(2)]
    return _completion(source, prompt=prompts, n=2, seed=source.randrange(1000))


def _tokens(source: random.Random) -> tuple[str, dict[str, Any]]:
    ids = [source.randrange(3, 256) for _ in range(source.randrange(60, 200))]
    return _completion(source, prompt=ids, temperature=0)


def _echoed(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, temperature=0, echo=True, logprobs=1, max_tokens=5)


def _beams(source: random.Random) -> tuple[str, dict[str, Any]]:
    return _completion(source, use_beam_search=True, best_of=3, n=2, temperature=0, max_tokens=60)


def _formed(source: random.Random) -> tuple[str, dict[str, Any]]:
    """JSON that is cut by its length: where it goes on, it must do so in its form."""
    item = {"type": "string", "pattern": "^[a-z]{9}-[0-9]{3}$"}
    schema = {"type": "array", "items": item, "minItems": 50}
    return _completion(source, seed=source.randrange(1000), n=2, guided_json=schema)


def _chat(source: random.Random) -> tuple[str, dict[str, Any]]:
    fields = {
        "messages": [{"role": "user", "content": _prompt(source, 10)}],
        "max_tokens": source.randrange(100, 250),
        "seed": source.randrange(1000),
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
    }
    return "/v1/chat/completions", fields


def _completion(source: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    common = {
        "prompt": _prompt(source, source.randrange(5, 25)),
        "max_tokens": source.randrange(100, 250),
        "ignore_eos": True,
    }
    return "/v1/completions", {**common, **fields}


KINDS: dict[str, Callable[[random.Random], tuple[str, dict[str, Any]]]] = {
    "greedy": _greedy,
    "seeded": _seeded,
    "samples": _samples,
    "scored": _scored,
    "penalized": _penalized,
    "several": _several,
    "tokens": _tokens,
    "echoed": _echoed,
    "beams": _beams,
    "chat": _chat,
    "formed": _formed,
}
