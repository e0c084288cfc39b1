"""Shared blocks, preemption and swap, over a tiny model. The numbers are those of our list of what
broke other servers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cluster.config import EngineConfig
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import PreemptionMode
from octavo.workers.worker import Worker
from tests.cluster.case_server import LONG, Server, joined
from tests.cluster.serving import MODEL, OpenClient, serve_engine, settings_for
from tests.conftest import TinyModel

BLOCK = 16
CONTEXT = 512
ADMIN = {"Authorization": "Bearer admin"}
OpenServer = Callable[..., Server]


def engine(path: Path, blocks: int, preemption_mode: PreemptionMode) -> OpenClient:
    config = EngineConfig(
        str(path),
        (MODEL,),
        dtype="float32",
        num_gpu_blocks_override=blocks + 1,
        num_threads=1,
        max_num_batched_tokens=256,
        max_model_len=CONTEXT,
        swap_space=0.01,
        preemption_mode=preemption_mode,
    )

    def open_engine() -> LocalEngine:
        workers = LocalWorkers(lambda: Worker(config.worker_config()))
        return LocalEngine(workers, lambda _: config.scheduler_config(CONTEXT))

    return open_engine


@pytest.fixture
def serve(tiny_model: TinyModel) -> Iterator[OpenServer]:
    """A server with so many usable blocks of 16 tokens."""
    path = tiny_model()
    with contextlib.ExitStack() as stack:

        def start(blocks: int, preemption_mode: PreemptionMode = "auto") -> Server:
            client = engine(path, blocks, preemption_mode)
            settings = settings_for(path, admin_api_key="admin")
            url = stack.enter_context(serve_engine(client, settings))
            return stack.enter_context(contextlib.closing(Server(url)))

        yield start


def cached(answer: dict[str, Any]) -> int:
    hits: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return hits


def prompt_of(length: int, number: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(3, CONTEXT) for _ in range(length)]


def test_case_33_cold_then_warm(serve: OpenServer) -> None:
    server = serve(40)
    prompt = server.tokens(LONG)
    full = (len(prompt) - 1) // BLOCK * BLOCK

    def ask() -> dict[str, Any]:
        return server.complete(prompt=prompt, max_tokens=20, logprobs=3, ignore_eos=True)

    cold, warm, again = ask(), ask(), ask()
    assert [cached(each) for each in (cold, warm, again)] == [0, full, full]
    assert cold["choices"] == warm["choices"] == again["choices"], "text and logprobs"
    for number in range(3):
        server.complete(prompt=prompt_of(CONTEXT - 20, number), max_tokens=4, ignore_eos=True)
    assert server.metric("octavo:host_prefix_hits_total") == 0
    from_host = ask()
    assert server.metric("octavo:host_prefix_hits_total") == full
    assert cached(from_host) == full
    assert from_host["choices"] == cold["choices"]


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_case_34_a_prompt_of_whole_blocks(serve: OpenServer, blocks: int) -> None:
    server = serve(40)
    for more in (-1, 0, 1):
        length = blocks * BLOCK + more
        prompt = prompt_of(length, length)
        first, second = (server.complete(prompt=prompt, max_tokens=1) for _ in range(2))
        assert cached(first) == 0
        assert cached(second) == (length - 1) // BLOCK * BLOCK
        assert first["choices"] == second["choices"]


def test_case_35_equal_prompts_in_one_batch(tiny_model: TinyModel) -> None:
    full, tail = 10, 5
    prompt = prompt_of(full * BLOCK + tail, 1)
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(
        tiny_model(), dtype="float32", num_gpu_blocks_override=300, num_threads=1, swap_space=0
    ) as llm:
        outputs = llm.generate([prompt] * 16, sampling, use_tqdm=False)
        measured = llm.stats().measured
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert measured.peak_blocks_used == full + 16 * 2, "5 + 20 tokens are two blocks each"
    assert measured.prompt_tokens_computed == len(prompt) + 15 * tail
    assert [output.num_cached_tokens for output in outputs] == [0] + [full * BLOCK] * 15


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_case_38_streams_that_are_preempted(serve: OpenServer, mode: PreemptionMode) -> None:
    tokens = 100

    def ask(server: Server, number: int) -> tuple[str, int]:
        chunks = server.stream(
            prompt=prompt_of(40, number),
            max_tokens=tokens,
            ignore_eos=True,
            stream_options={"include_usage": True},
        )
        return joined(chunks), chunks[-1]["usage"]["completion_tokens"]

    large = serve(200)
    wanted = [ask(large, number) for number in range(4)]
    assert large.metric("vllm:num_preemptions_total") == 0
    small = serve(2 * 9, mode)  # 139 tokens are 9 blocks
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: ask(small, number), range(4)))
    assert small.metric("vllm:num_preemptions_total") > 0
    assert found == wanted
    assert all(count == tokens for _, count in found)
    assert small.settles()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_case_39_beams_alone_together_and_preempted(
    serve: OpenServer, mode: PreemptionMode
) -> None:
    full, width = 6, 4

    def ask(server: Server, number: int) -> Any:
        prompt = prompt_of(full * BLOCK + 3, number)
        fields = {"use_beam_search": True, "n": 2, "best_of": width, "ignore_eos": True}
        return server.complete(prompt=prompt, max_tokens=28, **fields)["choices"]

    server = serve(30, mode)
    alone = [ask(server, number) for number in range(8)]
    peak = server.metric("octavo:kv_blocks_used_peak")
    assert full + width <= peak <= full + 2 * width, "the prompt is there once"
    assert server.metric("vllm:num_preemptions_total") == 0
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: ask(server, number), range(8)))
    assert server.metric("vllm:num_preemptions_total") > 0
    assert together == alone
    assert server.settles()


def test_case_40_nothing_leaks(serve: OpenServer) -> None:
    blocks = 31
    server = serve(blocks)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1, "seed": 3},
        {"temperature": 1, "seed": 4, "n": 3},
        {"temperature": 1, "seed": 5, "n": 1, "best_of": 2},
        {"use_beam_search": True, "n": 2, "best_of": 3},
        {"temperature": 0, "logprobs": 2, "echo": True},
        {"temperature": 0, "stop": ["e", "a"]},
        {"temperature": 0, "cache_salt": "salt", "repetition_penalty": 1.2},
    ]

    def ask(number: int) -> None:
        """Ten requests; every fifth time they are given up."""
        prompts = [prompt_of(1 + (number + i) % 70, number % 7) for i in range(10)]
        fields = {"prompt": prompts, "max_tokens": 1 + number % 25, **kinds[number % len(kinds)]}
        if number % 5:
            server.complete(**fields)
            return
        body = {"model": MODEL, "stream": True, **fields, "max_tokens": 200, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_raw())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(100)))
    assert server.metric("vllm:num_preemptions_total") > 0
    assert server.settles()
    (now,) = server.http.get("/debug/blocks", headers=ADMIN).json()["replicas"]
    device, host = now["device"], now["host"]
    assert now["requests"] == []
    assert device["free"] == blocks and device["cached"] <= blocks
    assert host["free"] == host["total"] and not any(host["counts"])
    assert not any(device["counts"][1:])
    whole = server.complete(
        prompt=prompt_of(blocks * BLOCK - 10, 99), max_tokens=10, ignore_eos=True
    )
    assert whole["usage"]["completion_tokens"] == 10
    assert server.metric("octavo:kv_blocks_used_peak") == blocks
