"""Text, stop strings and streams, over a tiny model.

Driven by the `openai` client and raw HTTP. The numbers are those of our list of what broke other
servers.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.cluster.case_server import PROMPT, Server, joined
from tests.cluster.serving import MODEL


def test_case_1_a_stop_string_across_tokens(server: Server, border: tuple[str, str]) -> None:
    text, stop = border
    chunks = server.stream(max_tokens=64, stop=[stop])
    assert joined(chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert server.text(max_tokens=64, stop=stop) == text[: text.index(stop)]
    assert server.settles()


def test_case_2_held_back_text_is_flushed(server: Server) -> None:
    text = server.text(max_tokens=24)
    fields: dict[str, Any] = {"max_tokens": 24, "stop": [text[-3:] + "ZZZ"]}
    chunks = server.stream(**fields)
    assert joined(chunks) == text == server.text(**fields)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stop", ["", [""], ["x", ""]])
def test_case_3_an_empty_stop_string(server: Server, stop: Any) -> None:
    server.refuses({"prompt": PROMPT, "stop": stop}, "stop")


def test_case_4_stop_strings_with_a_token_prompt(server: Server, border: tuple[str, str]) -> None:
    text, stop = border
    ids = server.tokens(PROMPT)
    assert server.both(prompt=ids, max_tokens=64, stop=[stop]) == text[: text.index(stop)]


def test_cases_5_and_6_joined_deltas_are_the_whole_text(server: Server) -> None:
    seeds = range(4)
    for seed in seeds:
        fields: dict[str, Any] = {"max_tokens": 48, "temperature": 1.0, "seed": seed}
        server.both(**fields)
    letters = {str(token): 60 for token in server.tokens("é你 好")}
    fields = {"max_tokens": 48, "logit_bias": letters}
    server.both(**fields)


@pytest.mark.parametrize("stream", [False, True])
def test_case_7_an_unpaired_surrogate(server: Server, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "a\ud800b"}], "stream": stream}
    answer = server.http.post("/v1/chat/completions", content=json.dumps(body))
    assert answer.status_code == 400
    assert "Traceback" not in answer.text and "Error(" not in answer.text
    assert "other half" in answer.json()["error"]["message"]
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_cases_27_28_and_30_the_usage_chunk_and_the_finish_reason(
    server: Server, path: str
) -> None:
    chunks = server.stream(path, max_tokens=5, stream_options={"include_usage": True})
    *earlier, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] <= 5
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in earlier)
    plain = server.stream(path, max_tokens=5)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in plain)
    reasons = [choice["finish_reason"] for chunk in plain for choice in chunk["choices"]]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] in ("stop", "length")


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_case_29_n_streamed(server: Server, path: str) -> None:
    fields: dict[str, Any] = {"n": 3, "seed": 1, "temperature": 1, "max_tokens": 12}
    chunks = server.stream(path, **fields)
    base = {"prompt": PROMPT, "messages": [{"role": "user", "content": "Hi"}]}
    whole = server.post(path, {**base, **fields}).json()["choices"]
    for index in range(3):
        reasons = [
            choice["finish_reason"]
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index and choice["finish_reason"]
        ]
        assert reasons == [whole[index]["finish_reason"]]
        text = whole[index].get("text") or whole[index]["message"]["content"]
        assert joined(chunks, index) == text


def test_the_openai_client_streams(server: Server) -> None:
    stream = server.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be short"}, {"role": "user", "content": "Hi"}],
        max_tokens=6,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], temperature=3
        )
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        server.openai.models.retrieve("other")
    assert unknown.value.code == "model_not_found"
