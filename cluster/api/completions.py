"""`/v1/completions`: the body to a job, and the job's deltas to OpenAI's objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from msgspec import UNSET

from octavo.cluster.api.answers import CompletionAnswer, CompletionChoice, CompletionLogprobs
from octavo.cluster.api.front import Front, new_id, now
from octavo.cluster.api.generation import Generation
from octavo.cluster.api.job import Job, plan_job
from octavo.cluster.api.logprobs import completion_logprobs, echoed_logprobs, prompt_logprobs
from octavo.cluster.api.prompts import completion_prompts
from octavo.cluster.api.protocol import CompletionRequest
from octavo.cluster.api.transcript import Delta, Transcript
from octavo.cluster.api.validate import (
    asked_max_tokens,
    cache_scope,
    priority_of,
    refuse_unserved,
    refuse_unstreamable,
    sampling_of,
    wants_usage_chunk,
)
from octavo.scheduler.errors import InvalidRequest

MAX_LOGPROBS = 5  # OpenAI's bound for this endpoint
DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """One call, checked. `echo` has each prompt's text, None where it is not asked for."""

    front: Front
    model: str
    job: Job
    created: int
    stream: bool
    usage_chunk: bool
    echo: list[str] | None
    logprobs: int | None
    prompt_logprobs: int | None

    async def answer(self) -> CompletionAnswer:
        """The whole answer."""
        async with self.job.start(self.front.client, self.front.tokenizer) as generation:
            outcomes = await generation.whole()
        choices = []
        for index, number in enumerate(self.job.chosen(generation.transcripts)):
            transcript = generation.transcripts[number]
            choice = self._choice(index, number, outcomes[number], transcript, first=True)
            if self.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs(
                    transcript.prompt_logprobs or [], self.prompt_logprobs, self.front.tokenizer
                )
            choices.append(choice)
        answer = self._envelope(choices)
        answer.usage = self.job.usage(generation.transcripts)
        return answer

    async def chunks(self, generation: Generation) -> AsyncGenerator[CompletionAnswer, None]:
        """The answer piece by piece: a chunk for each event, also while its text is held back."""
        begun = [False] * len(generation.transcripts)
        async for number, delta in generation:
            transcript = generation.transcripts[number]
            choice = self._choice(number, number, delta, transcript, first=not begun[number])
            begun[number] = True
            yield self._envelope([choice], between=True)
        if self.usage_chunk:
            answer = self._envelope([])
            answer.usage = self.job.usage(generation.transcripts)
            yield answer

    def _choice(
        self, index: int, number: int, delta: Delta, transcript: Transcript, *, first: bool
    ) -> CompletionChoice:
        prompt = self.job.prompts[number // self.job.width]
        echo = self.echo[number // self.job.width] if self.echo is not None else ""
        logprobs = None
        if self.logprobs is not None:
            logprobs = completion_logprobs(
                delta.tokens, self.logprobs, len(echo), self.front.tokenizer
            )
            if first and self.echo is not None:
                ahead = echoed_logprobs(
                    prompt.tokens,
                    transcript.prompt_logprobs or [],
                    self.logprobs,
                    self.front.tokenizer,
                    skip_special_tokens=self.job.sampling.skip_special_tokens,
                )
                logprobs = _joined(ahead, logprobs)
        return CompletionChoice(
            index=index,
            text=echo + delta.text if first else delta.text,
            logprobs=logprobs,
            finish_reason=delta.finish,
        )

    def _envelope(
        self, choices: list[CompletionChoice], *, between: bool = False
    ) -> CompletionAnswer:
        return CompletionAnswer(
            id=self.job.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.front.fingerprint,
            choices=choices,
            usage=None if between and self.usage_chunk else UNSET,
        )


async def completion_call(front: Front, body: CompletionRequest, tenant: str) -> CompletionCall:
    """Raises `InvalidRequest`, `UnknownModel`, or `EngineDead` while no replica is up."""
    model = front.served_model(body.model)
    refuse_unserved(body)
    refuse_unstreamable(body)
    usage_chunk = wants_usage_chunk(body)
    limits = front.settings.limits
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(
            "logprobs", f"logprobs must be between 0 and {MAX_LOGPROBS}, got {body.logprobs}"
        )
    echo = bool(body.echo)
    scored = body.prompt_logprobs
    if echo and body.logprobs is not None:
        scored = max(body.logprobs, scored or 0)
    asked, default = asked_max_tokens(body, DEFAULT_MAX_TOKENS)
    grammar = await front.grammar_of(body)
    sampling = sampling_of(
        body,
        front.tokenizer,
        limits,
        front.sampling_defaults,
        seed=front.seeds.draw(),
        max_tokens=asked,
        logprobs=body.logprobs,
        prompt_logprobs=scored,
        grammar=grammar,
    )
    salt = cache_scope(tenant, body.cache_salt, limits)
    window = await front.window()
    prompts = await completion_prompts(body, front.tokenizer, limits, window.tokens)
    job = plan_job(
        new_id("cmpl-"),
        prompts,
        sampling,
        window,
        limits,
        default_max_tokens=default,
        blame=("prompt", "max_tokens"),
        priority=priority_of(body),
        salt=salt,
        adapter=front.adapter_of(model),
    )
    texts = None
    if echo:
        skip = sampling.skip_special_tokens
        texts = [
            front.tokenizer.decode(each.tokens, skip_special_tokens=skip)
            if each.text is None
            else each.text
            for each in prompts
        ]
    return CompletionCall(
        front=front,
        model=model,
        job=job,
        created=now(),
        stream=bool(body.stream),
        usage_chunk=usage_chunk,
        echo=texts,
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
