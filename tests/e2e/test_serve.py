"""The whole of it on one machine: two replicas of two ranks each, as a user starts them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import openai
import pytest

from tests.e2e.answers import ADAPTER, MODEL
from tests.e2e.server import BACK_SECONDS, healthy, idle, read_gauge, scrape, wait_for

LONG = {"model": MODEL, "prompt": "An octavo", "max_tokens": 450, "temperature": 0}
FOREVER = {"ignore_eos": True}
WAIT_SECONDS = 20  # longer than any of it takes, even where others use the machine


@pytest.fixture(autouse=True)
def calm(server):
    """Each test begins with two idle replicas."""
    wait_for(lambda: healthy(server), BACK_SECONDS, "two idle replicas")


def completion(client, prompt="An octavo", count=24):
    answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=count, temperature=0, extra_body=FOREVER
    )
    return answer.choices[0].text


def test_the_start_says_what_there_is(server):
    assert "2,047 blocks of 16" in server.log
    assert "maximum concurrency for 512 tokens per request" in server.log
    assert f"{server.url}/v1" in server.log and "curl" in server.log
    assert "Traceback" not in server.log


def test_streams_and_answers_agree(client):
    whole = completion(client)
    stream = client.completions.create(
        model=MODEL,
        prompt="An octavo",
        max_tokens=24,
        temperature=0,
        stream=True,
        extra_body=FOREVER,
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole


def test_both_replicas_give_the_same_answers_at_once(client):
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: completion(client), range(32)))
    assert len(set(texts)) == 1


def test_a_chat(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "fold"}], max_tokens=8
    )
    assert answer.usage.completion_tokens <= 8


def test_health_and_models(server, client):
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert [model.id for model in client.models.list()] == [MODEL, ADAPTER]


def test_bad_input_stays_at_the_door(server, client):
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=MODEL, prompt="a", max_tokens=100_000)
    assert healthy(server)


def generated(server, least=0.0):
    """Tokens that both replicas have generated, once they are idle and it is at least so many."""

    def total():
        text = scrape(server.url)
        counts = read_gauge(text, "vllm:generation_tokens_total").values()
        return [sum(counts)] if sum(counts) >= least and len(idle(text)) == 2 else None

    [total] = wait_for(total, WAIT_SECONDS, f"{least} tokens")
    return total


def test_samples_of_one_request_end_one_by_one(server, client):
    def ask(**fields):
        answer = client.completions.create(
            model=MODEL,
            prompt="An octavo",
            n=4,
            seed=5,
            max_tokens=200,
            extra_body=FOREVER,
            **fields,
        )
        return [choice.text for choice in answer.choices]

    start = generated(server)
    whole = ask()
    assert len(set(whole)) == 4
    pieces = [whole[2][start : start + 6] for start in range(20, 100)]
    stop = next(piece for piece in pieces if sum(piece in text for text in whole) == 1)
    before = generated(server, start + 4 * 200)
    cut = ask(stop=stop)
    assert generated(server, before + 3 * 200) - before < 4 * 200 - 50, "the engine was told"
    assert cut[2] == whole[2][: whole[2].index(stop)]
    assert [cut[0], cut[1], cut[3]] == [whole[0], whole[1], whole[3]], "the others go on"


def test_an_admin_resets_and_sees_every_replica(server, client):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: completion(client, f"{number} pages"), range(32)))
    cached = "octavo:kv_blocks_cached"
    wait_for(
        lambda: len(values := server.gauge(cached).values()) == 2 and all(values),
        WAIT_SECONDS,
        "content on both replicas",
    )
    admin = {"Authorization": "Bearer admin"}
    assert httpx.post(f"{server.url}/reset_prefix_cache").status_code == 401
    shown = httpx.get(f"{server.url}/debug/blocks", headers=admin).json()
    assert len(shown["replicas"]) == 2
    answer = httpx.post(f"{server.url}/reset_prefix_cache", headers=admin)
    assert answer.json() == {"reset": True, "replicas": 2}
    wait_for(lambda: not any(server.gauge(cached).values()), WAIT_SECONDS, "empty caches")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_frees_everything(server, streamed):
    body = {**LONG, **FOREVER, "n": 16, "temperature": 1, "seed": 1, "stream": streamed}
    before = generated(server)

    async def hang_up():
        """Once the work was seen."""
        async with httpx.AsyncClient(timeout=30) as client:
            asking = asyncio.create_task(client.post(f"{server.url}/v1/completions", json=body))
            at_work = partial(wait_for, lambda: not healthy(server), WAIT_SECONDS, "work")
            await asyncio.to_thread(at_work)
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(hang_up())
    assert generated(server, before + 1) - before < 16 * 450, "it did not go on to the end"
