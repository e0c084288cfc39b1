"""Prompts, their logprobs, and the limits of memory, over a tiny model.

Driven by the `openai` client and raw HTTP. The numbers are those of our list of what broke other
servers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.cluster.case_server import CONTEXT, LONG, PROMPT, Server, joined
from tests.conftest import TinyModel


def test_case_18_scoring_a_prompt_gives_the_models_own_numbers(
    server: Server, tiny_model: TinyModel
) -> None:
    from transformers import AutoModelForCausalLM

    fields: dict[str, Any] = {"prompt": LONG, "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = server.complete(**fields)
    [chunk] = server.stream(**fields)
    streamed, whole = chunk["choices"][0], answer["choices"][0]
    assert (streamed["text"], streamed["finish_reason"]) == (whole["text"], "length")
    for name in ("tokens", "text_offset"):
        assert streamed["logprobs"][name] == whole["logprobs"][name]
    values = whole["logprobs"]["token_logprobs"][1:]
    assert streamed["logprobs"]["token_logprobs"][1:] == pytest.approx(values, abs=1e-5)
    choice, logprobs = answer["choices"][0], answer["choices"][0]["logprobs"]
    ids = server.tokens(LONG)
    assert choice["text"] == LONG == "".join(logprobs["tokens"])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == len(ids)
    offsets = logprobs["text_offset"]
    assert [
        LONG[offset:].startswith(token)
        for offset, token in zip(offsets, logprobs["tokens"], strict=True)
    ] == [True] * len(ids)
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    right = [logits[i, token].item() for i, token in enumerate(ids[1:])]
    assert logprobs["token_logprobs"][1:] == pytest.approx(right, abs=1e-3)
    best = [max(top.values()) for top in logprobs["top_logprobs"][1:]]
    assert best == pytest.approx(logits[:-1].max(-1).values.tolist(), abs=1e-3)


def test_an_echoed_prompt_and_its_answer_share_one_count_of_characters(server: Server) -> None:
    fields = {"echo": True, "max_tokens": 24, "logprobs": 0}
    choice = server.complete(**fields)["choices"][0]
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert len(tokens) == len(server.tokens(PROMPT)) + 24
    for offset, token in zip(offsets, tokens, strict=True):
        follows = choice["text"][offset:].lstrip("\ufffd")  # what broken bytes before it left
        assert token.startswith("bytes:") or follows.startswith(token)
    chunks = server.stream(**fields)
    streamed = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [offset for each in streamed for offset in each["text_offset"]] == offsets
    assert [token for each in streamed for token in each["tokens"]] == tokens


def test_case_19_scoring_is_the_same_cold_and_warm(server: Server) -> None:
    def score(stream: bool = False) -> Any:
        fields = {"prompt": LONG + "!", "echo": True, "max_tokens": 0, "logprobs": 1}
        [answer] = server.stream(**fields) if stream else [server.complete(**fields)]
        return answer["choices"][0]["logprobs"]["token_logprobs"][1:]

    cold = score()
    assert len(cold) > 100
    for stream in (False, True):
        server.complete(prompt=LONG[:200], max_tokens=4)
        server.complete(prompt=LONG + "!", max_tokens=4)
        assert score(stream) == pytest.approx(cold, abs=1e-4)


@pytest.mark.parametrize("as_ids", [False, True])
def test_case_20_a_list_of_prompts_with_n(server: Server, as_ids: bool) -> None:
    prompts = ["An octavo", "A sheet"]
    sent: list[Any] = [server.tokens(prompt) for prompt in prompts] if as_ids else prompts
    answer = server.complete(prompt=sent, n=2, echo=True, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for index, choice in enumerate(answer["choices"]):
        assert choice["text"].startswith(prompts[index // 2])
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(len(server.tokens(prompt)) for prompt in prompts)
    assert usage["completion_tokens"] == 16
    chunks = server.stream(prompt=sent, n=2, echo=True, max_tokens=4)
    assert [joined(chunks, i) for i in range(4)] == [c["text"] for c in answer["choices"]]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ["a", 1], [[1], "a"], [[1], []]])
def test_case_21_empty_and_mixed_prompts(server: Server, prompt: Any) -> None:
    server.refuses({"prompt": prompt}, "prompt")


@pytest.mark.parametrize("token", [512, 4294967295, 2**70, -1])
def test_case_22_a_token_past_the_vocabulary(server: Server, token: int) -> None:
    message = server.refuses({"prompt": [1, token]}, "prompt")
    assert str(token) in message and "511" in message


def test_case_23_one_token_too_many(server: Server) -> None:
    k = 40
    message = server.refuses({"prompt": [5] * k, "max_tokens": CONTEXT - k + 1}, "max_tokens")
    for number in (CONTEXT, k, CONTEXT - k + 1):
        assert str(number) in message
    fields: dict[str, Any] = {"prompt": [5] * k, "max_tokens": CONTEXT - k, "ignore_eos": True}
    answer = server.complete(**fields)
    assert joined(server.stream(**fields)) == answer["choices"][0]["text"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT


def test_case_24_the_prompt_at_and_past_the_limit(server: Server) -> None:
    assert server.complete(prompt=[5] * (CONTEXT - 1), max_tokens=1)
    for length in (CONTEXT, CONTEXT + 1):
        message = server.refuses({"prompt": [5] * length, "max_tokens": 1}, "prompt")
        assert str(length) in message and str(CONTEXT) in message
    server.refuses({"prompt": "x" * 100_000}, "prompt")
    assert server.complete(max_tokens=1)


def test_case_25_the_prompt_fits_the_model_but_not_the_pool(
    small_server: Callable[[int], Server],
) -> None:
    server = small_server(5)
    message = server.refuses({"prompt": [5] * 81, "max_tokens": 1}, "prompt")
    assert "80" in message and "81" in message
    server.refuses({"prompt": [5] * 80, "max_tokens": 1}, "prompt")
    server.refuses({"prompt": [5] * 75, "max_tokens": 6}, "max_tokens")
    assert server.complete(prompt=[5] * 75, max_tokens=5)["usage"]["total_tokens"] == 80
    assert server.complete(max_tokens=2)


def test_case_26_two_requests_that_each_need_over_half_the_pool(
    small_server: Callable[[int], Server],
) -> None:
    server = small_server(12)
    fields = {"max_tokens": 100, "ignore_eos": True}
    prompts = [[5] * 40, [6] * 40]
    alone = [server.text(prompt=prompt, **fields) for prompt in prompts]
    before = server.metric("vllm:num_preemptions_total")
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda prompt: server.text(prompt=prompt, **fields), prompts))
        streams = pool.map(lambda prompt: server.stream(prompt=prompt, **fields), prompts)
        streamed = list(map(joined, streams))
    assert together == streamed == alone
    assert server.metric("vllm:num_preemptions_total") - before <= 8


def test_prompt_logprobs_are_vllms(server: Server) -> None:
    ids = server.tokens(PROMPT)
    choice = server.complete(prompt_logprobs=2, max_tokens=1)["choices"][0]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    for token, entry in zip(ids[1:], rest, strict=True):
        assert str(token) in entry
        assert 2 <= len(entry) <= 3
        assert {"logprob", "rank", "decoded_token"} == set(entry[str(token)])
    server.refuses({"prompt": PROMPT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
