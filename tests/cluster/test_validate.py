"""What a client may send, and how it is told what is wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.cluster.api.front import Front, Seeds
from octavo.cluster.api.job import plan_job
from octavo.cluster.api.prompts import Prompt, chat_prompt
from octavo.cluster.api.protocol import (
    UNSERVED,
    ChatRequest,
    CompletionRequest,
    Message,
    StreamOptions,
)
from octavo.cluster.api.settings import FrontSettings, RequestLimits
from octavo.cluster.api.validate import Window, cache_scope, parse, refuse_unserved
from octavo.cluster.stats import EngineStats
from octavo.scheduler.errors import EngineDead, InvalidRequest, NeverFits
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, says

LIMITS = RequestLimits()


@pytest.mark.parametrize(
    ("raw", "param", "words"),
    [
        (b"", "", "not valid JSON"),
        (b"[]", "", "body"),
        (b'{"prompt": "a"', "", "not valid JSON"),
        (b'{"prompt": "\xff"}', "", "not valid JSON"),
        (b'{"prompt": NaN}', "", "NaN and Infinity"),
        (b'{"unknown": -Infinity}', "", "NaN and Infinity"),
        (b'{"unknown": "\\udc00"}', "", "other half"),
        (b'{"n": 1e999}', "n", "n:"),
        (b'{"n": "1"}', "n", "int"),
        (b'{"n": true}', "n", "int"),
        (b'{"n": 1.5}', "n", "float"),
        (b'{"n": 1e16}', "n", "float"),
        (b'{"n": 1.0, "best_of": "1"}', "best_of", "str"),
        (b'{"n": 1.0, "temperature": 1e999}', "n", "n:"),
        (b'{"n": 1.0, "temperature": NaN}', "", "NaN and Infinity"),
        (b'{"prompt": [[1, "a"]]}', "prompt", "prompt"),
        (b'{"logit_bias": {"abc": 1}}', "logit_bias", "logit_bias"),
        (b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "n", "out of range"),
    ],
)
def test_a_body_that_is_wrong_names_the_parameter(raw: bytes, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse(raw, CompletionRequest)
    assert caught.value.param == param


def test_a_whole_number_may_be_written_as_a_float() -> None:
    raw = b"""{"max_tokens": 5.0, "n": 2e0, "prompt": [1.0, 2], "logit_bias": {"7": 1.5, "8": 2.0},
    "temperature": 0.5, "top_p": 1.0, "stream_options": {"include_usage": true}}"""
    body = parse(raw, CompletionRequest)
    assert (body.max_tokens, body.n, body.prompt) == (5, 2, [1, 2])
    assert (body.logit_bias, body.temperature, body.top_p) == ({7: 1.5, 8: 2.0}, 0.5, 1.0)
    assert [type(body.max_tokens), type(body.n)] == [int, int]
    assert body.stream_options == StreamOptions(include_usage=True)


def test_unknown_fields_and_nulls_are_fine() -> None:
    names = [*CompletionRequest.__struct_fields__, "brand_new"]
    body = parse(json.dumps(dict.fromkeys(names)).encode(), CompletionRequest)
    refuse_unserved(body)
    assert body.max_tokens is None  # all that fit, unlike when it is absent


def test_every_unserved_field_is_declared_and_refused() -> None:
    declared = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__}
    assert set(UNSERVED) <= declared
    for name, harmless in UNSERVED.items():
        schema: Any = ChatRequest if name in ChatRequest.__struct_fields__ else CompletionRequest
        base: dict[str, Any] = {"messages": []}
        for value in harmless:
            refuse_unserved(parse(json.dumps({**base, name: value}).encode(), schema))
        with pytest.raises(InvalidRequest) as caught:
            refuse_unserved(parse(json.dumps({**base, name: {"x": 1}}).encode(), schema))
        assert caught.value.param == name


def stats(max_model_len: int, blocks: int) -> EngineStats:
    (one,) = ScriptedEngine(says("x"), max_model_len=max_model_len, num_blocks=blocks + 1).stats()
    return one


def test_the_window_is_the_smallest_of_all_replicas() -> None:
    window = Window.of([stats(100, 10), stats(100, 3)])
    assert (window.max_model_len, window.pool_tokens, window.tokens) == (100, 48, 48)
    with pytest.raises(EngineDead):
        Window.of([])


NAMES = ("prompt", "max_tokens")


def test_the_room_for_a_completion() -> None:
    window = Window(max_model_len=100, pool_tokens=1000)
    assert window.completion(40, 60, None, NAMES) == 60
    assert window.completion(40, None, None, NAMES) == 60
    assert window.completion(40, None, 16, NAMES) == 16
    assert window.completion(90, None, 16, NAMES) == 10
    assert window.completion(99, 0, None, NAMES) == 0
    for prompt, asked, param in [(40, 61, "max_tokens"), (100, 1, "prompt"), (100, 0, "prompt")]:
        with pytest.raises(NeverFits, match=f"context length is 100 .*{prompt}") as caught:
            window.completion(prompt, asked, None, NAMES)
        assert caught.value.param == param
    with pytest.raises(NeverFits, match="KV cache of this server holds 48 tokens.* 70 .*most 8"):
        Window(100, 48).completion(40, 30, None, NAMES)


def test_each_prompt_is_one_request_with_room_of_its_own() -> None:
    sampling = SamplingParams(n=2, seed=5, max_tokens=None, stop=("x",))
    job = plan_job(
        "job",
        [Prompt([3] * 90, "a"), Prompt([4], None)],
        sampling,
        Window(100, 1000),
        LIMITS,
        default_max_tokens=None,
        blame=NAMES,
        priority=1,
        salt="s",
    )
    assert [request.id for request in job.requests] == ["job-0", "job-1"]
    assert [len(request.prompt) for request in job.requests] == [90, 1]
    assert [request.sampling.max_tokens for request in job.requests] == [10, 99]
    assert [request.sampling.seed for request in job.requests] == [5, 5]
    assert [request.sampling.n for request in job.requests] == [2, 2] == [job.width] * 2
    assert all(request.sampling.stop == () for request in job.requests)
    assert job.sampling is sampling


def test_nobody_can_name_anothers_cache_scope() -> None:
    scopes = {cache_scope(key, salt, LIMITS) for key in ("a", "b") for salt in (None, "x", "y")}
    assert len(scopes) == 6
    assert cache_scope("a", "x", LIMITS) == cache_scope("a", "x", LIMITS)
    for scope in scopes:
        assert len(scope) == 32 and int(scope, 16) >= 0, "a hash: neither the key nor the salt"
    forged = cache_scope("a", None, LIMITS)
    assert cache_scope("b", forged, LIMITS) not in scopes
    assert cache_scope("", None, LIMITS) == ""
    assert cache_scope("", "x", LIMITS) == "x"
    for salt in ("", "x" * 1025):
        with pytest.raises(InvalidRequest) as caught:
            cache_scope("a", salt, LIMITS)
        assert caught.value.param == "cache_salt"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0]"),
    ],
)
def test_messages_that_cannot_be_taken(message: dict[str, Any], param: str) -> None:
    body = parse(json.dumps({"messages": [message]}).encode(), ChatRequest)
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(rendered(body.messages))
    assert caught.value.param == param


async def rendered(messages: list[Message], limits: RequestLimits = LIMITS) -> str:
    prompt = await chat_prompt(
        messages, TOKENIZER, limits, 10**6, add_generation_prompt=False, template_kwargs=None
    )
    return prompt.text or ""


def test_messages_become_text() -> None:
    raw = b"""{"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null}]}"""
    assert asyncio.run(rendered(parse(raw, ChatRequest).messages)) == "user: a\nb\nassistant: \n"
    with pytest.raises(InvalidRequest, match="at most 1"):
        asyncio.run(rendered([Message(role="user", content="x")] * 2, RequestLimits(messages=1)))


def test_a_text_too_long_to_tokenize_is_refused_unread() -> None:
    with pytest.raises(NeverFits, match="characters") as caught:
        asyncio.run(
            chat_prompt(
                [Message(role="user", content="x" * 10**6)],
                TOKENIZER,
                LIMITS,
                100,
                add_generation_prompt=False,
                template_kwargs=None,
            )
        )
    assert caught.value.param == "messages"


def test_the_fingerprint_tells_models_apart_and_keys_stay_out_of_logs() -> None:
    engine = ScriptedEngine(says("x"))
    fronts = [Front(engine, FrontSettings("", (name,)), TOKENIZER) for name in "ab"]
    assert fronts[0].fingerprint != fronts[1].fingerprint
    settings = FrontSettings("", ("a",), api_keys=("hidden",), admin_api_key="hidden too")
    assert "hidden" not in repr(settings)


def test_a_front_with_a_seed_draws_the_same_seeds_again():
    first, second = Seeds(7), Seeds(7)
    drawn = [first.draw() for _ in range(5)]
    assert drawn == [second.draw() for _ in range(5)] and len(set(drawn)) == 5
    assert Seeds(8).draw() != drawn[0]


def test_a_front_without_a_seed_never_repeats_itself():
    seeds = Seeds(None)
    assert len({seeds.draw() for _ in range(100)}) == 100
