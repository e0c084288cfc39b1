"""`/v1/responses`: the same work as a chat, in the words of OpenAI's newer endpoint. Stateless: a
client sends the whole conversation, and nothing of it is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from octavo.cluster.api.answers import FinishReason
from octavo.cluster.api.chat import ChatCall, chat_call
from octavo.cluster.api.failures import Failure
from octavo.cluster.api.front import Front, now
from octavo.cluster.api.generation import Generation
from octavo.cluster.api.job import Job
from octavo.cluster.api.responses_answers import (
    ErrorEvent,
    Incomplete,
    ResponseAnswer,
    ResponseEvent,
    ResponsesUsage,
    to_named_event,
)
from octavo.cluster.api.responses_draft import OutputDraft
from octavo.cluster.api.responses_input import as_chat, in_our_words
from octavo.cluster.api.responses_protocol import ResponsesRequest
from octavo.scheduler.errors import InvalidRequest


class ResponsesCall:
    """One call, checked."""

    def __init__(self, chat: ChatCall, body: ResponsesRequest) -> None:
        self._chat = chat
        self._body = body
        self._sent = 0
        self.stream = chat.stream

    @property
    def job(self) -> Job:
        return self._chat.job

    async def answer(self) -> ResponseAnswer:
        """The whole answer."""
        chat = self._chat
        async with self.job.start(chat.front.client, chat.front.tokenizer) as generation:
            (outcome,) = await generation.whole()
        output, draft = self._output(), chat.draft(0)
        for delta in draft.add(outcome):
            for _ in output.add(delta):
                pass
        assert outcome.finish is not None
        for _ in output.end("incomplete" if outcome.finish == "length" else "completed"):
            pass
        return self._ended(generation, output, draft.reason(outcome.finish))

    async def chunks(self, generation: Generation) -> AsyncGenerator[ResponseEvent, None]:
        """That it has begun, each item of the output as it comes, and the whole answer."""
        yield self._numbered(ResponseEvent(type="response.created", response=self._response()))
        yield self._numbered(ResponseEvent(type="response.in_progress", response=self._response()))
        output, draft = self._output(), self._chat.draft(0)
        finish: FinishReason = "stop"
        async for _, new in generation:
            for delta in draft.add(new):
                for event in output.add(delta):
                    yield self._numbered(event)
            if new.finish:
                finish = draft.reason(new.finish)
        for event in output.end("incomplete" if finish == "length" else "completed"):
            yield self._numbered(event)
        answer = self._ended(generation, output, finish)
        yield self._numbered(ResponseEvent(type=f"response.{answer.status}", response=answer))

    def failure(self, failed: Failure) -> bytes:
        """The event that ends a stream in which something went wrong."""
        error = failed.answer.error
        number = self._sent
        return to_named_event(
            ErrorEvent(
                sequence_number=number, code=error.code, message=error.message, param=error.param
            )
        )

    def _numbered(self, event: ResponseEvent) -> ResponseEvent:
        event.sequence_number = self._sent
        self._sent += 1
        return event

    def _output(self) -> OutputDraft:
        return OutputDraft(self.job.id)

    def _ended(
        self, generation: Generation, output: OutputDraft, finish: FinishReason
    ) -> ResponseAnswer:
        answer = self._response()
        answer.output = list(output.items)
        answer.usage = ResponsesUsage.of(self.job.usage(generation.transcripts))
        answer.status = "incomplete" if finish == "length" else "completed"
        if finish == "length":
            answer.incomplete_details = Incomplete("max_output_tokens")
        else:
            answer.completed_at = now()
        return answer

    def _response(self) -> ResponseAnswer:
        """What is known from the start: mostly what the request says itself."""
        body, sampling = self._body, self.job.sampling
        text: dict[str, Any] = {"format": {"type": "text"}}
        if body.text is not None and body.text.format is not None:
            text = {"format": _given(body.text.format)}
        choice: Any = body.tool_choice or "auto"
        if isinstance(choice, msgspec.Struct):
            choice = _given(choice)
        reasoning: dict[str, str | None] = {"effort": None, "summary": None}
        if body.reasoning is not None:
            reasoning = {"effort": body.reasoning.effort, "summary": body.reasoning.summary}
        return ResponseAnswer(
            id=self.job.id,
            created_at=self._chat.created,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self._chat.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=reasoning,
            temperature=sampling.temperature,
            text=text,
            tool_choice=choice,
            tools=body.tools or [],
            top_p=sampling.top_p,
            user=body.user,
        )


async def responses_call(front: Front, body: ResponsesRequest, tenant: str) -> ResponsesCall:
    """Raises `InvalidRequest`, `UnknownModel`, or `EngineDead` while no replica is up."""
    chat = as_chat(body)
    try:
        return ResponsesCall(await chat_call(front, chat, tenant, "resp_"), body)
    except InvalidRequest as error:
        raise in_our_words(error) from error


def _given(value: msgspec.Struct) -> dict[str, Any]:
    """Without what was left out."""
    given: dict[str, Any] = msgspec.to_builtins(value)
    return {name: each for name, each in given.items() if each is not None}
