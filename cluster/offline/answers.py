"""One offline request: its sequences followed to the end and put together in vLLM's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from octavo.cluster.api.answers import FinishReason
from octavo.cluster.api.job import Job
from octavo.cluster.api.transcript import Transcript
from octavo.cluster.client import EngineClient
from octavo.cluster.offline.outputs import CompletionOutput, RequestOutput, by_token, of_prompt
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import RequestFailed
from octavo.scheduler.request import Logprob, Request

Result = TypeVar("Result")


@dataclass(slots=True)
class _Answer:
    """One sequence's answer as it grows."""

    transcript: Transcript
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    finish: FinishReason | None = None


async def answer(client: EngineClient, tokenizer: Tokenizer, job: Job) -> RequestOutput:
    """The finished output of a job of one prompt.

    Raises what `EngineClient.generate` raises; nothing of the job runs on then.
    """
    answers = await all_of([_follow(client, tokenizer, request, job) for request in job.requests])
    (prompt,) = job.prompts
    chosen = job.chosen([one.transcript for one in answers])
    return RequestOutput(
        request_id=job.id,
        prompt=prompt.text,
        prompt_token_ids=list(prompt.tokens),
        outputs=[
            _output(tokenizer, index, answers[number], job.sampling.logprobs is not None)
            for index, number in enumerate(chosen)
        ],
        num_cached_tokens=answers[0].transcript.cached_tokens,
        prompt_logprobs=of_prompt(tokenizer, answers[0].transcript.prompt_logprobs),
    )


async def all_of(work: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order. If one raises, the others are cancelled and have ended by then."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(
    client: EngineClient, tokenizer: Tokenizer, request: Request, job: Job
) -> _Answer:
    transcript = Transcript(
        tokenizer,
        request,
        job.sampling,
        StopStrings(job.sampling.stop),
    )
    one = _Answer(transcript)
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            before = transcript.generated
            delta = transcript.feed(event)
            taken = transcript.generated - before  # none behind a stop string
            one.tokens += event.tokens[:taken]
            one.logprobs += (event.logprobs or [])[:taken]
            one.text += delta.text
            if delta.finish is not None:
                one.finish = delta.finish
                return one
    raise RequestFailed("the engine ended the stream without a finish reason")


def _output(
    tokenizer: Tokenizer, index: int, one: _Answer, with_logprobs: bool
) -> CompletionOutput:
    assert one.finish is not None
    return CompletionOutput(
        index=index,
        text=one.text,
        token_ids=one.tokens,
        finish_reason=one.finish,
        cumulative_logprob=one.transcript.logprob_sum if with_logprobs else None,
        logprobs=[by_token(tokenizer, entry) for entry in one.logprobs] if with_logprobs else None,
    )
