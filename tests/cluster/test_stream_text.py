"""The text of a stream, joined, is byte for byte the text of the answer that is not streamed: over
HTTP, for random prompts, texts, stop strings and sizes of what the engine hands over at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.scheduler.request import Finish, Request, TokenEvent
from tests.cluster.calls import Connect, data_of
from tests.cluster.case_server import Server
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, Step
from tests.cluster.serving import MODEL
from tests.cluster.test_stops import expected

LETTERS = "ab é你好👩‍👧́😀\u200d\ufe0f▁\n"
TEXTS = st.text(st.one_of(st.sampled_from(LETTERS), st.characters(codec="utf-8")), max_size=25)
CUTS = st.lists(st.integers(1, 9), max_size=20)
PATHS = st.sampled_from(["completions", "chat/completions"])
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Talk:
    """A `ScriptedEngine`'s script: these tokens, in runs of these lengths."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = ()
        self.cuts: Sequence[int] = ()

    def __call__(self, request: Request) -> list[Step]:
        lengths, events, start = iter(self.cuts), [], 0
        while start < len(self.ids):
            length = next(lengths, 1)
            events.append(TokenEvent(request.id, list(self.ids[start : start + length])))
            start += length
        events[-1].finish = Finish.LENGTH
        return list(events)


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def http(connected: Connect, talk: Talk) -> Iterator[httpx.Client]:
    with connected(ScriptedEngine(talk, max_model_len=400)) as http:
        yield http


def answer(http: httpx.Client, path: str, **fields: Any) -> tuple[str, str]:
    """Text and finish reason."""
    base = {"model": MODEL, "prompt": "Say", "messages": [{"role": "user", "content": "Say"}]}
    response = http.post(f"/v1/{path}", json=base | fields)
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        (choice,) = response.json()["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return text, choice["finish_reason"]
    *chunks, done = data_of(response)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    return "".join(texts), choices[-1]["finish_reason"]


@MANY
@given(data=st.data(), text=TEXTS.filter(bool), path=PATHS, cuts=CUTS, others=CUTS)
def test_of_any_text_in_any_portions(
    http: httpx.Client,
    talk: Talk,
    data: st.DataObject,
    text: str,
    path: str,
    cuts: list[int],
    others: list[int],
) -> None:
    starts = st.integers(0, len(text) - 1)
    pieces = st.builds(lambda at, size: text[at : at + size], starts, st.integers(1, 4))
    stops = data.draw(st.lists(pieces | TEXTS.filter(bool), max_size=4))
    include = data.draw(st.booleans())
    talk.ids, talk.cuts = TOKENIZER.encode(text), cuts
    fields = {"stop": stops, "include_stop_str_in_output": include, "max_tokens": len(talk.ids)}
    wanted, stopped = expected(text, stops, include)
    reason = "stop" if stopped else "length"
    assert answer(http, path, **fields) == (wanted, reason)
    talk.cuts = others
    assert answer(http, path, **fields, stream=True) == (wanted, reason)


@MANY
@given(
    ids=st.lists(st.integers(2, TOKENIZER.vocab_size - 1), min_size=1, max_size=40),
    path=PATHS,
    cuts=CUTS,
    others=CUTS,
    stop=st.sampled_from(["a", "é", " t", "你"]),
)
def test_of_bytes_that_are_no_text(
    http: httpx.Client,
    talk: Talk,
    ids: list[int],
    path: str,
    cuts: list[int],
    others: list[int],
    stop: str,
) -> None:
    """Random tokens are mostly parts of characters that never become whole."""
    talk.ids, talk.cuts = ids, cuts
    fields = {"stop": stop, "max_tokens": len(ids)}
    whole = answer(http, path, **fields)
    talk.cuts = others
    assert answer(http, path, **fields, stream=True) == whole
    assert whole[0] == expected(TOKENIZER.decode(ids), [stop], False)[0]


@settings(MANY, max_examples=40)
@given(data=st.data(), prompt=TEXTS.filter(bool), path=PATHS, seed=st.integers(0, 99))
def test_of_a_model(server: Server, data: st.DataObject, prompt: str, path: str, seed: int) -> None:
    """Greedy or drawn, with stop strings out of what it said before, if of anything."""
    fields: dict[str, Any] = {
        "prompt": prompt,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": data.draw(st.sampled_from([0, 1, 2])),
        "seed": seed,
        "max_tokens": data.draw(st.integers(1, 24)),
    }
    whole, _ = answer(server.http, path, **fields)
    if whole and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(whole) - 1))
        fields["stop"] = [whole[at : at + data.draw(st.integers(1, 3))], "é"]
        cut, reason = answer(server.http, path, **fields)
        assert cut == expected(whole, fields["stop"], False)[0]
        whole = cut
    assert answer(server.http, path, **fields, stream=True)[0] == whole
