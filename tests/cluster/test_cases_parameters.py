"""What a client may ask for, over a tiny model.

Driven by the `openai` client and raw HTTP. The numbers are those of our list of what broke other
servers.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.case_server import CONTEXT, PROMPT, Server, joined
from tests.cluster.serving import MODEL


def test_case_8_n_with_a_seed(server: Server) -> None:
    fields: dict[str, Any] = {"n": 4, "seed": 7, "temperature": 1, "max_tokens": 32}

    def texts() -> list[str]:
        answer = server.openai.completions.create(model=MODEL, prompt=PROMPT, **fields)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first
    chunks = server.stream(**fields)
    assert [joined(chunks, index) for index in range(4)] == first


def test_case_9_n_at_temperature_0(server: Server) -> None:
    choices = server.complete(n=3, max_tokens=8)["choices"]
    assert len(choices) == 3
    assert len({choice["text"] for choice in choices}) == 1
    chunks = server.stream(n=3, max_tokens=8)
    assert [joined(chunks, index) for index in range(3)] == [each["text"] for each in choices]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_case_10_no_number_at_all(server: Server, value: str) -> None:
    for stream in ("true", "false"):
        body = f'{{"prompt":"a","stream":{stream},"temperature":{value}}}'
        assert server.http.post("/v1/completions", content=body).status_code == 400
    assert server.text(max_tokens=1) == server.text(max_tokens=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 2),
        ("top_p", -0.5),
        ("temperature", -1),
        ("temperature", 999999),
        ("presence_penalty", 9),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("min_p", 1.5),
        ("top_k", -2),
        ("seed", 2**64),
        ("min_tokens", 17),
        ("priority", 2**40),
        ("logprobs", 6),
        ("prompt_logprobs", 21),
        ("temperature", "hot"),
        ("n", 1.5),
        ("stop", 5),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1001),
        ("stop_token_ids", [512]),
        ("stop_token_ids", [1] * 129),
        ("cache_salt", ""),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_case_11_out_of_range(server: Server, name: str, value: Any) -> None:
    message = server.refuses({"prompt": PROMPT, name: value}, name)
    assert name in message


def test_case_12_border_values(server: Server) -> None:
    greedy = server.text(max_tokens=8)
    assert server.both(max_tokens=8, temperature=1, top_p=0) == greedy
    for fields in ({"top_p": 1}, {"temperature": 2}, {"presence_penalty": -2}, {"min_p": 1}):
        server.both(max_tokens=2, seed=1, **fields)
    names = ["top_p", "temperature", "n", "seed", "stop", "logit_bias", "logprobs", "best_of"]
    names += ["stream", "stream_options", "suffix", "echo", "presence_penalty", "max_tokens"]
    answer = server.post("completions", {"prompt": PROMPT, **dict.fromkeys(names)})
    assert answer.status_code == 200


def test_case_13_logit_bias(server: Server) -> None:
    for bias in ({"99999999": 5}, {"-1": 5}, {"abc": 1}, {"5": 1000}, {"5": "x"}):
        server.refuses({"prompt": PROMPT, "logit_bias": bias}, "logit_bias")
    ids = server.tokens(PROMPT)
    scored = server.complete(prompt=[*ids, 5], prompt_logprobs=1, max_tokens=1)
    likeliest = scored["choices"][0]["prompt_logprobs"][-1]
    token = next(id_ for id_, entry in likeliest.items() if entry["rank"] == 1)
    greedy = server.complete(max_tokens=1, logprobs=0)["choices"][0]["logprobs"]
    other = server.complete(max_tokens=1, logprobs=0, logit_bias={token: -100})
    assert greedy["tokens"] == [likeliest[token]["decoded_token"]]
    assert other["choices"][0]["logprobs"]["tokens"] != greedy["tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_case_14_huge_and_zero_counts(server: Server, stream: bool) -> None:
    for name, value in [("n", 1_000_000), ("n", 0), ("max_tokens", 10**9), ("max_tokens", -1)]:
        server.refuses({"prompt": PROMPT, name: value, "stream": stream}, name)
    server.refuses({"prompt": ["a"] * 100, "n": 100}, "n")
    server.refuses({"prompt": ["a"] * 2000}, "prompt")


def test_case_15_best_of(server: Server) -> None:
    server.refuses({"prompt": PROMPT, "n": 2, "best_of": 1}, "best_of")
    fields: dict[str, Any] = {"temperature": 1, "seed": 3, "max_tokens": 8}
    every = server.complete(n=4, logprobs=0, **fields)["choices"]
    best = server.complete(n=2, best_of=4, **fields)

    def mean(choice: dict[str, Any]) -> float:
        values: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    ranked = sorted(every, key=mean, reverse=True)
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    counted = sum(len(choice["logprobs"]["tokens"]) for choice in every)
    assert best["usage"]["completion_tokens"] == counted
    chunks = server.stream(n=2, best_of=2, **fields)
    assert [joined(chunks, index) for index in (0, 1)] == [c["text"] for c in every[:2]]


def test_case_16_chat_logprobs_without_a_count(server: Server) -> None:
    answer = server.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        logprobs=True,
        max_tokens=3,
        temperature=0,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [entry.top_logprobs for entry in logprobs.content] == [[], [], []]
    chunks = server.stream("chat/completions", logprobs=True, max_tokens=3)
    streamed = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [entry["token"] for each in streamed for entry in each["content"]] == [
        entry.token for entry in logprobs.content
    ]
    assert not any(entry["top_logprobs"] for each in streamed for entry in each["content"])
    body = {"messages": [{"role": "user", "content": "Hi"}], "top_logprobs": 2}
    server.refuses(body, "top_logprobs", "chat/completions")


def test_case_17_both_names_of_the_length(server: Server) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for name in ("max_tokens", "max_completion_tokens"):
        fields = {"messages": messages, name: 8, "temperature": 0}
        answer = server.post("chat/completions", fields).json()
        assert answer["usage"]["completion_tokens"] <= 8
        usage = {"stream_options": {"include_usage": True}}
        *chunks, last = server.stream("chat/completions", **fields, **usage)
        assert last["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
        assert joined(chunks) == answer["choices"][0]["message"]["content"]
        message = server.refuses({"messages": messages, name: CONTEXT}, name, "chat/completions")
        assert str(CONTEXT) in message


@pytest.mark.parametrize(
    ("field", "refused", "harmless"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}], []),
        ("tool_choice", "required", "none"),
        ("functions", [{"name": "f"}], []),
        ("audio", {"voice": "x", "format": "wav"}, None),
        ("modalities", ["audio"], ["text"]),
    ],
)
def test_what_a_chat_is_not_served_is_refused_by_name(
    server: Server, field: str, refused: Any, harmless: Any
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert field in server.refuses({**body, field: refused}, field, "chat/completions")
    assert server.post("chat/completions", {**body, field: harmless}).status_code == 200


def test_a_suffix_is_refused(server: Server) -> None:
    assert "not supported" in server.refuses({"prompt": PROMPT, "suffix": "the end"}, "suffix")
