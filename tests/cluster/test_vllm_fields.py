"""Sampling fields that OpenAI does not have and clients of vLLM send."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cluster.text.bad_words import spellings
from tests.cluster.case_server import CONTEXT, LONG, PROMPT, Server
from tests.cluster.scripted import TOKENIZER

FREE: dict[str, Any] = {"temperature": 1, "seed": 3, "max_tokens": 24, "ignore_eos": True}


def generated(server: Server, **fields: Any) -> list[str]:
    answer = server.complete(**{**FREE, "logprobs": 0, **fields})
    tokens: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    return tokens


def test_only_allowed_tokens_are_chosen(server: Server) -> None:
    allowed = server.tokens("abc")
    assert len(allowed) == 3
    tokens = generated(server, allowed_token_ids=allowed)
    assert len(tokens) == 24 and set(tokens) == set("abc")
    assert set(server.both(**FREE, n=1, allowed_token_ids=allowed[:1])) == {"a"}


def test_bad_words_are_not_written(server: Server) -> None:
    allowed = server.tokens("abc")
    free = "".join(generated(server, allowed_token_ids=allowed))
    assert "ab" in free and "c" in free
    held = "".join(generated(server, allowed_token_ids=allowed, bad_words=["ab"], seed=5))
    assert "ab" not in held and {"a", "b", "c"} == set(held)
    assert "b" not in generated(server, allowed_token_ids=allowed, bad_words=["b"])


def test_a_word_may_stand_behind_a_blank() -> None:
    plain, blank = spellings(["leaf"], TOKENIZER)
    assert TOKENIZER.decode(plain) == "leaf" and TOKENIZER.decode(blank) == " leaf"
    assert spellings([" leaf", "leaf"], TOKENIZER) == (blank, plain)


def test_a_prompt_may_be_cut_to_its_last_tokens(server: Server) -> None:
    ids = server.tokens(LONG)
    fields: dict[str, Any] = {"max_tokens": 8, "echo": True}
    whole = server.complete(prompt=ids[-20:], **fields)
    for prompt in (LONG, ids):
        cut = server.complete(prompt=prompt, truncate_prompt_tokens=20, **fields)
        assert cut["usage"]["prompt_tokens"] == 20
        assert cut["choices"][0]["text"] == whole["choices"][0]["text"]
    far_too_long = LONG * 200
    fit = server.complete(prompt=far_too_long, truncate_prompt_tokens=-1, max_tokens=1)
    assert fit["usage"]["prompt_tokens"] == CONTEXT - 1
    messages = [{"role": "user", "content": far_too_long}]
    body = {"messages": messages, "truncate_prompt_tokens": 30, "max_tokens": 1}
    answer = server.post("chat/completions", body).json()
    assert answer["usage"]["prompt_tokens"] == 30
    short = server.complete(truncate_prompt_tokens=400, max_tokens=1)
    assert short["usage"]["prompt_tokens"] == len(server.tokens(PROMPT))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [512]}, "allowed_token_ids"),
        ({"allowed_token_ids": [5] * 513}, "allowed_token_ids"),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [65], "use_beam_search": True}, "allowed_token_ids"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": ["x" * 1001]}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_what_cannot_be_is_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    server.refuses({"prompt": PROMPT, **fields}, param)


def test_words_that_forbid_all_that_is_allowed_are_refused(server: Server) -> None:
    allowed = server.tokens("ab")
    body = {"prompt": PROMPT, "allowed_token_ids": allowed, "bad_words": ["a", "ab"]}
    assert "no token to choose" in server.refuses(body, "allowed_token_ids")
