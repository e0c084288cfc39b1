"""`/v1/chat/completions`: the body to a job, and the job's deltas to OpenAI's objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from octavo.cluster.api.answers import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    PromptLogprobs,
)
from octavo.cluster.api.front import Front, new_id, now
from octavo.cluster.api.generation import Generation
from octavo.cluster.api.job import Job, plan_job
from octavo.cluster.api.logprobs import chat_logprobs, prompt_logprobs
from octavo.cluster.api.message import Draft, whole_message
from octavo.cluster.api.prompts import chat_prompt, last_tokens
from octavo.cluster.api.protocol import ChatRequest
from octavo.cluster.api.structured import grammar_for_schema
from octavo.cluster.api.tools import ToolUse, tool_use
from octavo.cluster.api.transcript import Delta, ShownToken
from octavo.cluster.api.validate import (
    asked_max_tokens,
    cache_scope,
    priority_of,
    refuse_unserved,
    refuse_unstreamable,
    sampling_of,
    wants_usage_chunk,
)
from octavo.cluster.text.answer_reader import AnswerReader
from octavo.cluster.text.frames import frame
from octavo.cluster.text.reasoning import END, ReasoningKind, ReasoningReader
from octavo.cluster.text.tool_calls import HermesCalls
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.sampling import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One call, checked. `logprobs` is how many of the likeliest tokens to show, None for none."""

    front: Front
    model: str
    job: Job
    created: int
    stream: bool
    usage_chunk: bool
    logprobs: int | None
    prompt_logprobs: int | None
    tools: ToolUse

    async def answer(self) -> ChatAnswer:
        """The whole answer."""
        async with self.job.start(self.front.client, self.front.tokenizer) as generation:
            outcomes = await generation.whole()
        transcripts = generation.transcripts
        scored: PromptLogprobs | UnsetType = UNSET
        if self.prompt_logprobs is not None:
            scored = prompt_logprobs(
                transcripts[0].prompt_logprobs or [], self.prompt_logprobs, self.front.tokenizer
            )
        return ChatAnswer(
            id=self.job.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.front.fingerprint,
            choices=[
                self._choice(index, outcomes[number])
                for index, number in enumerate(self.job.chosen(transcripts))
            ],
            usage=self.job.usage(transcripts),
            prompt_logprobs=scored,
        )

    async def chunks(self, generation: Generation) -> AsyncGenerator[ChatChunk, None]:
        """For each choice its role, then text as it comes, then why it ended. The role waits for
        the first token, because many clients take the first chunk for that."""
        opened: set[int] = set()
        drafts = [self.draft(index) for index in range(len(generation.transcripts))]
        async for index, new in generation:
            if first := index not in opened:
                opened.add(index)
                begin = ChatDelta(role="assistant", content="")
                yield self._chunk([ChatChunkChoice(index=index, delta=begin)])
            tokens = new.tokens
            for delta in drafts[index].add(new):
                choice = ChatChunkChoice(index=index, delta=delta)
                choice.logprobs = self._logprobs(tokens)
                yield self._chunk([choice])
                tokens = []
            if tokens or (first and not new):  # of a text that says nothing yet, or never
                choice = ChatChunkChoice(index=index, delta=ChatDelta(content=""))
                choice.logprobs = self._logprobs(tokens)
                yield self._chunk([choice])
            if new.finish:
                end = ChatChunkChoice(index=index, delta=ChatDelta())
                end.finish_reason = drafts[index].reason(new.finish)
                yield self._chunk([end])
        if self.usage_chunk:
            chunk = self._chunk([])
            chunk.usage = self.job.usage(generation.transcripts)
            yield chunk

    def draft(self, index: int) -> Draft:
        """An empty message, for the choice `index`."""
        return Draft(f"{self.job.id}-{index}", tools=bool(self.tools.schemas))

    def _choice(self, index: int, outcome: Delta) -> ChatChoice:
        assert outcome.finish is not None
        draft = self.draft(index)
        return ChatChoice(
            index=index,
            message=whole_message(draft.add(outcome)),
            logprobs=self._logprobs(outcome.tokens),
            finish_reason=draft.reason(outcome.finish),
        )

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self.job.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.front.fingerprint,
            choices=choices,
            usage=None if self.usage_chunk else UNSET,
        )

    def _logprobs(self, tokens: list[ShownToken]) -> ChatLogprobs | None:
        if self.logprobs is None:
            return None
        return chat_logprobs(tokens, self.logprobs, self.front.tokenizer)


async def chat_call(
    front: Front, body: ChatRequest, tenant: str, kind: str = "chatcmpl-"
) -> ChatCall:
    """`kind` begins the answer's id. Raises `InvalidRequest`, `UnknownModel`, or `EngineDead` while
    no replica is up."""
    model = front.served_model(body.model)
    refuse_unserved(body)
    refuse_unstreamable(body)
    usage_chunk = wants_usage_chunk(body)
    limits = front.settings.limits
    tools = tool_use(body, front.settings)
    logprobs = _logprobs_asked(body)
    asked, _ = asked_max_tokens(body, None)
    length = "max_tokens"
    if body.max_completion_tokens is not None:
        asked, length = body.max_completion_tokens, "max_completion_tokens"
        if asked < 0:
            raise InvalidRequest(length, f"{length} must be at least 0, got {asked}")
    grammar, around = await _grammar(front, body, tools)
    reasoning = front.settings.reasoning_parser
    if grammar is not None and not front.tokenizer.writes(END):
        reasoning = None  # a grammar is of text, which such a marker is not
    sampling = sampling_of(
        body,
        front.tokenizer,
        limits,
        front.sampling_defaults,
        seed=front.seeds.draw(),
        max_tokens=asked,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        grammar=grammar,
    )
    salt = cache_scope(tenant, body.cache_salt, limits)
    window = await front.window()
    cut = body.truncate_prompt_tokens
    prompt = await chat_prompt(
        body.messages,
        front.tokenizer,
        limits,
        window.tokens if cut is None else limits.body_bytes,
        add_generation_prompt=body.add_generation_prompt is not False,
        template_kwargs=body.chat_template_kwargs,
        tools=tools.shown,
        reasoning=grammar is None or reasoning is not None,
    )
    text = prompt.text or ""
    if grammar is not None and (framed := frame(around, reasoning, text)):
        grammar = msgspec.structs.replace(grammar, frame=framed)
        sampling = sampling.replace(grammar=await front.grammars.check("messages", grammar))
    job = plan_job(
        new_id(kind),
        [last_tokens(prompt, cut, window.tokens)],
        sampling,
        window,
        limits,
        default_max_tokens=None,
        blame=("messages", length),
        priority=priority_of(body),
        salt=salt,
        adapter=front.adapter_of(model),
        reader=_reader(reasoning, tools, text),
    )
    return ChatCall(
        front=front,
        model=model,
        job=job,
        created=now(),
        stream=bool(body.stream),
        usage_chunk=usage_chunk,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        tools=tools,
    )


async def _grammar(
    front: Front, body: ChatRequest, tools: ToolUse
) -> tuple[Grammar | None, str | None]:
    """What the whole answer, or each call in it, must be a sentence of, None where the model may
    answer as it likes; and the rule of what may stand around calls."""
    asked = await front.grammar_of(body)
    if tools.schema is not None:
        if asked is not None:
            raise InvalidRequest(
                "tool_choice",
                "tool_choice makes the answer a call, so it cannot have another form too; leave "
                "out the other, or let tool_choice be auto",
            )
        whole = grammar_for_schema(dict(tools.schema), "tools")
        return await front.grammars.check("tools", whole), None
    if asked is None and (strict := tools.strict_calls) and not body.use_beam_search:
        schema, around = strict
        if tools.format != "hermes" or front.tokenizer.writes(HermesCalls.start):
            call = grammar_for_schema(schema, "tools")
            return await front.grammars.check("tools", call), around
    return asked, None


def _reader(
    reasoning: ReasoningKind | None, tools: ToolUse, prompt: str
) -> Callable[[], AnswerReader] | None:
    """How answers to this prompt are read; None where all they can be is content."""
    if reasoning is None and not tools.schemas:
        return None

    def reader() -> AnswerReader:
        return AnswerReader(reasoning and ReasoningReader(reasoning, prompt), tools.reader())

    return reader


def _logprobs_asked(body: ChatRequest) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            "top_logprobs", f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}"
        )
    if body.logprobs:
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs to be true")
    return None
