"""One client for every server: streamed completions of token ids, timed where they arrive.

It shares the two cores with the server, so it only notes when bytes came and reads them after the
last request has ended.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_SECONDS = 900.0

Chunks = list[tuple[float, bytes]]
"""What arrived, and how many seconds after the request was sent."""


class WrongAnswer(Exception):
    """A server answered something else than was asked for."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`rate` in output tokens a second over the whole run; means over requests, in seconds, of the
    time to the first token and from each token to the next, where they could be seen."""

    rate: float
    first: float | None = None
    each: float | None = None


def measure(url: str, model: str, prompts: list[list[int]], output: int, in_flight: int) -> Figures:
    """Sends all prompts, `in_flight` at a time; each gets exactly `output` tokens.

    Raises `WrongAnswer` where a server refuses one or gives it another number of tokens.
    """
    wall, answers = asyncio.run(_send_all(url, model, prompts, output, in_flight))
    seen = [_first_and_last(chunks, output) for chunks in answers]
    return Figures(
        rate=len(prompts) * output / wall,
        first=statistics.mean(first for first, _ in seen),
        each=statistics.mean((last - first) / (output - 1) for first, last in seen),
    )


def chat(url: str, model: str, question: str, tokens: int) -> str:
    """The greedy answer to a lone question, through the server's chat template."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    answer = httpx.post(
        f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_SECONDS, trust_env=False
    )
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def served_model(url: str) -> str:
    answer = httpx.get(f"{url}/v1/models", timeout=TIMEOUT_SECONDS, trust_env=False)
    return str(answer.raise_for_status().json()["data"][0]["id"])


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


async def _send_all(
    url: str, model: str, prompts: list[list[int]], output: int, in_flight: int
) -> tuple[float, list[Chunks]]:
    """Seconds over all, and what arrived for each."""
    gate = asyncio.Semaphore(in_flight)
    each_its_own = httpx.Limits(max_keepalive_connections=0)  # not all servers keep them open
    async with httpx.AsyncClient(
        base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, limits=each_its_own
    ) as client:

        async def one(prompt: list[int]) -> Chunks:
            async with gate:
                return await _stream(client, _body(model, prompt, output))

        begin = time.perf_counter()
        answers = await asyncio.gather(*map(one, prompts))
        return time.perf_counter() - begin, answers


def _body(model: str, prompt: list[int], output: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _stream(client: httpx.AsyncClient, body: dict[str, Any]) -> Chunks:
    begin = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise WrongAnswer(f"{client.base_url}: status {response.status_code}: {text}")
        return [(time.perf_counter() - begin, chunk) async for chunk in response.aiter_raw()]


def _first_and_last(chunks: Chunks, output: int) -> tuple[float, float]:
    """Seconds to the first and the last event that brought a token."""
    times: list[float] = []
    usage: dict[str, Any] | None = None
    rest = b""
    for seconds, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                times.append(seconds)
            usage = event.get("usage") or usage
    if not times or usage is None or usage["completion_tokens"] != output:
        raise WrongAnswer(f"a request did not give its {output} tokens: usage {usage}")
    return times[0], times[-1]
