"""Requests that are given up, and requests side by side, over a tiny model.

Driven by the `openai` client and raw HTTP. The numbers are those of our list of what broke other
servers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cluster.case_server import LONG, PROMPT, Server
from tests.cluster.serving import MODEL


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_cases_31_and_32_a_client_hangs_up(server: Server, stream: bool, n: int) -> None:
    tokens = 450 if n == 1 else 300  # the pool holds eight of these
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "n": n, "stream": stream}
    for _ in range(25 if n == 1 else 100):
        with (
            pytest.raises(httpx.ReadTimeout),
            server.http.stream(
                "POST", "/v1/completions", json=body, timeout=httpx.Timeout(30, read=0.02)
            ) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            for _ in answer.iter_raw():
                raise httpx.ReadTimeout("enough was read")
    assert server.settles(), "no block is in use, as before"


def test_case_36_the_salt_decides_who_shares(server: Server) -> None:
    def cached(salt: str) -> int:
        answer = server.complete(prompt=LONG[::-1], cache_salt=salt, max_tokens=1)
        hits: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return hits

    assert cached("a") == 0
    assert cached("b") == 0
    assert cached("a") > 100


def test_case_37_what_counts_as_a_hit(
    server: Server, small_server: Callable[[int], Server]
) -> None:
    def cached(answer: dict[str, Any]) -> int:
        hits: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return hits

    prompt = server.tokens(LONG)[7:]
    assert cached(server.complete(prompt=prompt, max_tokens=1)) == 0
    full = len(prompt[:-1]) // 16 * 16
    assert cached(server.complete(prompt=prompt, max_tokens=1)) == full
    assert cached(server.complete(prompt=prompt, max_tokens=1, n=4)) == full, "once a prompt"
    usage = server.stream(prompt=prompt, stream_options={"include_usage": True}, max_tokens=1)
    assert cached(usage[-1]) == full
    small = small_server(12)
    with ThreadPoolExecutor(3) as pool:
        prompts = [[number] * 40 for number in (5, 6, 7)]
        fields = {"max_tokens": 100, "ignore_eos": True}
        answers = list(pool.map(lambda prompt: small.complete(prompt=prompt, **fields), prompts))
    assert small.metric("vllm:num_preemptions_total") > 0
    assert [cached(answer) for answer in answers] == [0, 0, 0], "coming back is no hit"


def test_case_39_beams_alone_and_side_by_side(
    server: Server, small_server: Callable[[int], Server]
) -> None:
    fields = {"use_beam_search": True, "n": 2, "best_of": 3, "max_tokens": 12, "ignore_eos": True}
    prompts = ["An octavo", "A sheet", "A page", "Readers"]
    alone = [server.complete(prompt=prompt, **fields)["choices"] for prompt in prompts]
    assert all(len({choice["text"] for choice in choices}) == 2 for choices in alone)
    small = small_server(14)
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda prompt: small.complete(prompt=prompt, **fields)["choices"], prompts)
        )
    assert together == alone
    assert small.settles()


def test_case_41_two_requests_with_the_same_request_id(server: Server) -> None:
    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 60, "model": MODEL}
        headers = {"X-Request-Id": "same"}
        answer = server.http.post("/v1/completions", json=body, headers=headers)
        text: str = answer.json()["choices"][0]["text"]
        return text

    prompts = ["An octavo", "A sheet"]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, prompts)) == [ask(prompt) for prompt in prompts]


def test_case_44_a_second_turn_with_content_in_parts(server: Server) -> None:
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "And?")]
    plain = [{"role": role, "content": text} for role, text in turns]
    parts = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    answers = [
        server.post(
            "chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8}
        ).json()
        for messages in (plain, parts)
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    server.refuses(body, "messages[0].content[0]", "chat/completions")
