"""One offline request: its samples followed to the end and put together in vLLM's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from octavo.cluster.api.generation import Generation
from octavo.cluster.api.job import Job
from octavo.cluster.api.transcript import Delta, Transcript
from octavo.cluster.client import EngineClient
from octavo.cluster.offline.outputs import CompletionOutput, RequestOutput, by_token, of_prompt
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams

Result = TypeVar("Result")


class _Record(Transcript):
    """A transcript that keeps every token, those of a stop string and the end token included."""

    def __init__(
        self, tokenizer: Tokenizer, request: Request, sampling: SamplingParams, stops: StopStrings
    ) -> None:
        super().__init__(tokenizer, request, sampling, stops)
        self.tokens: list[int] = []
        self.logprobs: list[Logprob] = []

    def feed(self, event: TokenEvent) -> Delta:
        before = self.generated
        delta = super().feed(event)
        taken = self.generated - before  # none behind a stop string
        self.tokens += event.tokens[:taken]
        self.logprobs += (event.logprobs or [])[:taken]
        return delta


async def answer(client: EngineClient, tokenizer: Tokenizer, job: Job) -> RequestOutput:
    """The finished output of a job of one prompt.

    Raises what `EngineClient.generate` raises; nothing of the job runs on then.
    """
    (prompt,) = job.prompts
    records = job.transcripts(tokenizer, _Record)
    async with Generation(client, job.requests, records) as generation:
        outcomes = await generation.whole()
    return RequestOutput(
        request_id=job.id,
        prompt=prompt.text,
        prompt_token_ids=list(prompt.tokens),
        outputs=[
            _output(tokenizer, index, records[number], outcomes[number], job)
            for index, number in enumerate(job.chosen(records))
        ],
        num_cached_tokens=records[0].cached_tokens,
        prompt_logprobs=of_prompt(tokenizer, records[0].prompt_logprobs),
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


def _output(
    tokenizer: Tokenizer, index: int, record: _Record, outcome: Delta, job: Job
) -> CompletionOutput:
    assert outcome.finish is not None
    logprobs = None
    if job.sampling.logprobs is not None:
        logprobs = [by_token(tokenizer, entry) for entry in record.logprobs]
    summed = logprobs is not None or job.ranked or record.score is not None
    return CompletionOutput(
        index=index,
        text=outcome.text,
        token_ids=record.tokens,
        finish_reason=outcome.finish,
        cumulative_logprob=record.logprob_sum if summed else None,
        logprobs=logprobs,
        score=record.score,
    )
