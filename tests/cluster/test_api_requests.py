"""What of a request reaches the engine, against scripted engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from tests.cluster.calls import Connect, chat, complete, data_of, error_of
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, Step, events, says


def test_sampling_reaches_the_engine(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 10**9,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 7},
        "stop_token_ids": [9],
        "min_tokens": 2,
        "seed": 11,
        "priority": -3,
        "cache_salt": "mine",
        "n": 2,
        "unknown_field": {"is": "ignored"},
    }
    with connected(engine) as http:
        assert complete(http, **fields).status_code == 200
    (request,) = engine.seen
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.5, 0.9, 0.1)
    assert sampling.top_k == TOKENIZER.vocab_size
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, {5: 7})
    assert sampling.stop_token_ids == (9, 1)  # the end token too
    assert (sampling.max_tokens, sampling.min_tokens) == (16, 2)
    assert (sampling.seed, sampling.n, sampling.best_of) == (11, 2, None)
    assert (request.priority, request.salt) == (-3, "mine")
    assert request.prompt == TOKENIZER.encode("Say")


def test_without_a_seed_one_is_drawn_and_ignore_eos_adds_no_end_token(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        complete(http, ignore_eos=True)
        complete(http, ignore_eos=True)
    first, second = (request.sampling for request in engine.seen)
    assert first.seed is not None and first.seed != second.seed
    assert first.stop_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 16),
        ({"max_tokens": None}, 200 - len(TOKENIZER.encode("Say"))),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 0}, 0),
    ],
)
def test_max_tokens_of_a_completion(
    connected: Connect, fields: dict[str, Any], tokens: int
) -> None:
    engine = ScriptedEngine(events([5] * 4))
    with connected(engine) as http:
        answer = complete(http, **fields).json()
    assert engine.seen[0].sampling.max_tokens == tokens
    assert answer["usage"]["completion_tokens"] == min(tokens, 4)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_default_length_is_cut_to_what_fits(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"), max_model_len=len(TOKENIZER.encode("Say")) + 3)
    with connected(engine) as http:
        assert complete(http).status_code == 200
    assert engine.seen[0].sampling.max_tokens == 3


def test_max_tokens_of_a_chat(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    prompt = len(TOKENIZER.encode("user: Hello\nassistant: "))
    with connected(engine) as http:
        chat(http)
        chat(http, max_completion_tokens=8)
        chat(http, max_completion_tokens=9, max_tokens=3)
        message = error_of(chat(http, max_completion_tokens=200), 400, "max_completion_tokens")
    assert [each.sampling.max_tokens for each in engine.seen] == [200 - prompt, 8, 9]
    assert f"{prompt} in the prompt" in message and str(200 - prompt) in message


def test_with_keys_the_cache_scope_is_the_servers(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine, api_keys=("key-a", "key-b")) as http:
        for key, salt in [("a", None), ("a", "s"), ("b", "s"), ("a", "s")]:
            headers = {"Authorization": f"Bearer key-{key}"}
            body = {"prompt": "x", "cache_salt": salt}
            assert http.post("/v1/completions", json=body, headers=headers).status_code == 200
    plain, mine, theirs, again = (request.salt for request in engine.seen)
    assert mine == again
    assert len({plain, mine, theirs, "s", ""}) == 5
    assert "key" not in mine


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_is_scored_once_and_shown_in_each_choice(
    connected: Connect, stream: bool
) -> None:
    scores = [None, *[Logprob(token, -3.0, 1) for token in TOKENIZER.encode("Say")[1:]]]

    def script(request: Request) -> Sequence[Step]:
        played = says("Hi", Finish.LENGTH, step=9)(request)
        first = played[0]
        assert isinstance(first, TokenEvent) and first.index == 0
        first.prompt_logprobs = scores
        return played

    engine = ScriptedEngine(script)
    with connected(engine) as http:
        answer = complete(http, echo=True, logprobs=0, n=2, stream=stream)
    assert [request.sampling.prompt_logprobs for request in engine.seen] == [0]
    answers = data_of(answer)[:-1] if stream else [answer.json()]
    choices = [choice for each in answers for choice in each["choices"]]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "SayHi"), (1, "SayHi")]
    for choice in choices:
        given = choice["logprobs"]["token_logprobs"]
        assert given[: len(scores)] == [None, *[-3.0] * (len(scores) - 1)]


def test_best_of_answers_with_the_likeliest_and_counts_all(connected: Connect) -> None:
    texts = ["bad", "good", "fair"]
    means = {0: -9.0, 1: -1.0, 2: -5.0}

    def script(request: Request) -> list[Step]:
        assert (request.sampling.n, request.sampling.logprobs) == (3, 0)
        played: list[Step] = []
        for index, text in enumerate(texts):
            token = TOKENIZER.encode(text[0])[0]
            logprob = Logprob(token, means[index], 1)
            event = TokenEvent(request.id, [token], Finish.LENGTH, logprobs=[logprob], index=index)
            played.append(event)
        return played

    with connected(ScriptedEngine(script)) as http:
        answer = complete(http, n=2, best_of=3).json()
        error_of(complete(http, n=2, best_of=3, stream=True), 400, "best_of")
        error_of(complete(http, n=2, best_of=1), 400, "best_of")
        plain = complete(http, n=3, best_of=0, logprobs=0)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "g"), (1, "f")]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 3
    assert len(plain.json()["choices"]) == 3, "0 is a best_of that is not asked for, as in OpenAI's"
