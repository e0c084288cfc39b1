"""A thousand requests of all kinds, right and wrong, 32 at a time: none is a fault of the server's,
none changes another's answer, and nothing is left of any."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from starlette.types import ASGIApp

from octavo.cluster.api.app import create_app
from octavo.cluster.local import LocalClient
from tests.cluster.case_server import Server, joined
from tests.cluster.serving import MODEL, serve, settings_for, tiny_engine
from tests.conftest import TinyModel

REQUESTS, AT_ONCE = 1000, 32
WORDS = ["An octavo", "a sheet", "folded", "leaves", "é你 好", "😀", "page", "\n", "readers cut"]


SHEETS = {
    "type": "object",
    "properties": {"leaves": {"enum": [2, 4, 8]}, "of": {"type": "string", "maxLength": 4}},
    "required": ["leaves"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Ask:
    """`body` is JSON or what should be; `status` what it must be answered with. A client that
    `leaves` hangs up when it has read the first bytes, or after a moment."""

    path: str
    body: bytes
    status: int
    leaves: bool = False

    @property
    def streamed(self) -> bool:
        return self.status == 200 and b'"stream": true' in self.body

    @property
    def greedy(self) -> bool:
        return self.status == 200 and b'"temperature": 0,' in self.body and not self.leaves


class Inside:
    """What only the server's own process can see."""

    loop: asyncio.AbstractEventLoop
    client: Any

    @asynccontextmanager
    async def open_app(self, open_client: Any, settings: Any) -> AsyncIterator[ASGIApp]:
        async with open_client() as self.client:
            assert isinstance(self.client, LocalClient)
            self.loop = asyncio.get_running_loop()
            yield create_app(self.client, settings)

    def tasks(self) -> int:
        return len(asyncio.all_tasks(self.loop))


@pytest.fixture(scope="module")
def crowded(tiny_model: TinyModel) -> Iterator[tuple[Server, Inside]]:
    """A server whose pool is too small for all that runs at once."""
    path, inside = tiny_model(), Inside()
    engine = tiny_engine(path, num_blocks=30, max_num_seqs=16)
    with serve(lambda: inside.open_app(engine, settings_for(path))) as url:
        server = Server(url)
        yield server, inside
        server.close()


def kinds(draw: random.Random) -> list[Ask]:
    """Some requests of each kind."""
    asks = []
    for _ in range(45):
        asks += [_good_completion(draw), _good_chat(draw)]
    asks += [_good_response(draw) for _ in range(9)]
    asks += _wrong(draw)
    asks += [
        Ask(ask.path, ask.body, ask.status, leaves=True)
        for ask in draw.sample(asks, 30)
        if ask.status == 200
    ]
    return asks


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))


def _sampling(draw: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "temperature": draw.choice([0, 0, 0, 0.7]),
        "max_tokens": draw.choice([1, 2, 9, 24]),
        "stream": draw.random() < 0.5,
    }
    optional: dict[str, Any] = {
        "n": draw.randint(1, 3),
        "seed": draw.randint(-9, 9),
        "stop": draw.choice(["e", [" a", "的"], ["zz", "ZZZ"]]),
        "top_k": draw.choice([-1, 1, 5]),
        "ignore_eos": True,
        "logit_bias": {"7": -100, "8": 3},
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "cache_salt": draw.choice("ab"),
        "priority": draw.randint(-2, 2),
        "min_tokens": 1,
        "guided_regex": "[a-z]{2,9}( [0-9]{2})*",
        "some_new_field": {"nobody": ["knows"]},
    }
    for name in draw.sample(list(optional), draw.randint(0, 4)):
        fields[name] = optional[name]
    return fields


def _good_completion(draw: random.Random) -> Ask:
    ids = [draw.randrange(3, 500) for _ in range(draw.choice([1, 15, 16, 17, 60]))]
    prompt = draw.choice([_text(draw), ids, [_text(draw), _text(draw)], [ids, ids[:5]]])
    fields = {"prompt": prompt, **_sampling(draw)}
    if draw.random() < 0.3:
        fields |= {"logprobs": draw.randint(0, 5), "echo": draw.random() < 0.5}
    if draw.random() < 0.1:
        fields |= {"use_beam_search": True, "best_of": 3, "n": 2, "temperature": 0}
        for name in ("stop", "guided_regex"):
            fields.pop(name, None)
    elif draw.random() < 0.1:
        fields |= {"best_of": 3, "n": 2, "stream": False}
    return Ask("completions", json.dumps(fields).encode(), 200)


def _good_chat(draw: random.Random) -> Ask:
    turns: list[dict[str, Any]] = [{"role": "user", "content": _text(draw)}]
    if draw.random() < 0.5:
        parts = [{"type": "text", "text": _text(draw)}]
        turns += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": parts}]
    fields = {"messages": turns, **_sampling(draw)}
    if draw.random() < 0.3:
        fields |= {"logprobs": True, "top_logprobs": draw.randint(0, 20)}
    if draw.random() < 0.2 and "guided_regex" not in fields:
        function = {"name": "fold", "parameters": SHEETS}
        fields |= {"tools": [{"type": "function", "function": function}]}
        fields |= {"tool_choice": "required", "parallel_tool_calls": draw.random() < 0.5}
    return Ask("chat/completions", json.dumps(fields).encode(), 200)


def _good_response(draw: random.Random) -> Ask:
    fields: dict[str, Any] = {"temperature": 0, "max_output_tokens": draw.choice([16, 40])}
    if draw.random() < 0.5:
        form = {"type": "json_schema", "name": "sheets", "schema": SHEETS}
        fields |= {"text": {"format": form}}
    return Ask("responses", json.dumps({"input": _text(draw), **fields}).encode(), 200)


def _wrong(draw: random.Random) -> list[Ask]:
    base = {"prompt": _text(draw), "messages": [{"role": "user", "content": "x"}]}
    changes: list[dict[str, Any]] = [
        {"n": 0}, {"n": 10**6}, {"n": "1"}, {"temperature": -1}, {"temperature": "hot"},
        {"max_tokens": 10**9}, {"max_tokens": -1}, {"top_p": 7}, {"stop": [""]}, {"stop": 5},
        {"stop": ["x"] * 17}, {"logit_bias": {"999999": 1}}, {"logit_bias": {"a": 1}},
        {"seed": 2**70}, {"cache_salt": ""}, {"prompt_logprobs": 99}, {"min_tokens": 99,
        "max_tokens": 3}, {"response_format": {"type": "no such"}}, {"stop_token_ids": [10**6]},
        {"prompt": [], "messages": []}, {"prompt": [1, 2**40], "messages": [{"role": "me"}]},
        {"prompt": [3] * 600, "messages": [{"role": "user", "content": "x " * 2000}]},
    ]  # fmt: skip
    asks = []
    for path in ("completions", "chat/completions"):
        for change in changes:
            body = {**base, **change, "stream": draw.random() < 0.5}
            asks.append(Ask(path, json.dumps(body).encode(), 400))
        raw = [b"", b"[]", b"{", b'{"prompt": "\xff"}', b'{"n": NaN}', b"[" * 5000, b"\x00"]
        raw += [b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}']
        asks += [Ask(path, body, 400) for body in raw]
        asks.append(Ask(path, json.dumps({**base, "model": "gpt"}).encode(), 404))
    return asks


def told(ask: Ask, answer: httpx.Response) -> Any:
    """What must be the same each time: texts and why they ended, or what was wrong."""
    if ask.status != 200:
        return answer.json()["error"]["message"]
    if ask.path == "responses":
        output = answer.json()["output"]
        return answer.json()["status"], [[part["text"] for part in o["content"]] for o in output]
    if not ask.streamed:
        return [
            (c["text"] if "text" in c else _said(c["message"]), c["finish_reason"])
            for c in answer.json()["choices"]
        ]
    *chunks, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert done == "[DONE]", answer.text[-500:]
    read = [json.loads(chunk) for chunk in chunks]
    ends = {
        c["index"]: c["finish_reason"]
        for chunk in read
        for c in chunk["choices"]
        if c["finish_reason"]
    }
    deltas = [c for chunk in read for c in chunk["choices"] if "delta" in c]
    calls = [[_said(c["delta"], "") for c in deltas if c["index"] == index] for index in ends]
    return [
        (joined(read, index) or "".join(said), ends[index])
        for index, said in sorted(zip(ends, calls, strict=True))
    ]


def _said(message: dict[str, Any], content: str = "content") -> str:
    """Content, or the arguments of all calls."""
    calls = message.get("tool_calls") or []
    return message.get(content) or "".join(call["function"]["arguments"] for call in calls)


async def ask_all(url: str, asks: list[Ask], at_once: int) -> tuple[list[Any], Counter[int]]:
    """What was told to each, None for those that left, and how many of each status there were."""
    turn = asyncio.Semaphore(at_once)
    statuses: Counter[int] = Counter()

    async def one(http: httpx.AsyncClient, ask: Ask) -> Any:
        headers = {"Content-Type": "application/json", "X-Request-Id": "all-the-same"}
        async with turn:
            if ask.leaves:
                try:
                    async with asyncio.timeout(0.03):
                        await http.post(f"/v1/{ask.path}", content=ask.body, headers=headers)
                except TimeoutError:
                    pass
                return None
            answer = await http.post(f"/v1/{ask.path}", content=ask.body, headers=headers)
        statuses[answer.status_code] += 1
        assert answer.status_code == ask.status, (ask, answer.text[:500])
        return told(ask, answer)

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        return await asyncio.gather(*(one(http, ask) for ask in asks)), statuses


def resident() -> int:
    gc.collect()
    bytes_: int = psutil.Process().memory_info().rss
    return bytes_


def test_a_thousand_requests(crowded: tuple[Server, Inside]) -> None:
    server, inside = crowded
    url = str(server.http.base_url)
    draw = random.Random(7)
    some = kinds(draw)
    alone, _ = asyncio.run(ask_all(url, some, 1))
    right = dict(zip(some, alone, strict=True))
    asyncio.run(ask_all(url, draw.choices(some, k=REQUESTS // 10), AT_ONCE))
    assert server.settles()
    tasks, memory = inside.tasks(), resident()
    asked = draw.choices(some, k=REQUESTS)
    answers, statuses = asyncio.run(ask_all(url, asked, AT_ONCE))
    assert set(statuses) == {200, 400, 404}
    for ask, answer in zip(asked, answers, strict=True):
        if ask.greedy or ask.status != 200:
            assert answer == right[ask], ask
    assert server.settles()
    assert server.http.get("/load").json() == {"server_load": 0}
    assert server.metric("vllm:num_preemptions_total") > 0, "the pool was too small on purpose"
    assert inside.tasks() <= tasks
    assert resident() - memory < 30 * 2**20
    assert MODEL in server.http.get("/v1/models").text
