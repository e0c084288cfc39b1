"""One API call as engine work: which requests it needs, and which samples it answers with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.cluster.api.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from octavo.cluster.api.generation import Generation
from octavo.cluster.api.prompts import Prompt
from octavo.cluster.api.read_transcript import ReadTranscript
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.api.transcript import Transcript
from octavo.cluster.api.validate import Window
from octavo.cluster.client import EngineClient
from octavo.cluster.text.answer_reader import AnswerReader
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams

Kind = TypeVar("Kind", bound=Transcript)


@dataclass(frozen=True, slots=True)
class Job:
    """One request a prompt. Sequences are prompt-major: sequence s is sample s % width of prompt
    s // width. `sampling` is what the client asked for. With a `reader`, each answer is read for
    reasoning and calls of tools by one of its own."""

    id: str
    prompts: list[Prompt]
    sampling: SamplingParams
    requests: list[Request]
    reader: Callable[[], AnswerReader] | None = None

    @property
    def width(self) -> int:
        """Sequences a prompt that the engine answers with."""
        return self.requests[0].sampling.n

    @property
    def ranked(self) -> bool:
        """Whether the client gets fewer sequences than the engine answers with."""
        return self.width > self.sampling.n

    def transcripts(
        self,
        tokenizer: Tokenizer,
        kind: Callable[[Tokenizer, Request, SamplingParams, StopStrings], Kind],
    ) -> list[Kind]:
        """A new one for each sequence."""
        stops = StopStrings(self.sampling.stop)
        return [
            kind(tokenizer, request, self.sampling, stops)
            for request in self.requests
            for _ in range(self.width)
        ]

    def start(self, client: EngineClient, tokenizer: Tokenizer) -> Generation:
        """To be entered with `async with`; nothing runs before."""
        transcripts: Sequence[Transcript]
        if (reader := self.reader) is None:
            transcripts = self.transcripts(tokenizer, Transcript)
        else:
            transcripts = self.transcripts(
                tokenizer, lambda *given: ReadTranscript(*given, reader=reader())
            )
        return Generation(client, self.requests, transcripts)

    def chosen(self, transcripts: Sequence[Transcript]) -> list[int]:
        """The sequences to answer with, in the order of their choice index: all, or of each
        prompt the `n` with the best mean logprob."""
        chosen: list[int] = []
        for first in range(0, len(transcripts), self.width):
            numbers = list(range(first, first + self.width))
            if self.ranked:
                numbers.sort(key=lambda number: -transcripts[number].mean_logprob)
            chosen += numbers[: self.sampling.n]
        return chosen

    def usage(self, transcripts: Sequence[Transcript]) -> Usage:
        """Each prompt counts once; every sequence that the engine answered with counts."""
        prompt = sum(len(each.tokens) for each in self.prompts)
        generated = sum(each.generated for each in transcripts)
        cached = sum(each.cached_tokens for each in transcripts[:: self.width])
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(each.reasoning_tokens for each in transcripts)
            ),
        )


def plan_job(
    job_id: str,
    prompts: list[Prompt],
    sampling: SamplingParams,
    window: Window,
    limits: RequestLimits,
    *,
    default_max_tokens: int | None,
    blame: tuple[str, str],
    priority: int,
    salt: str,
    adapter: str = "",
    reader: Callable[[], AnswerReader] | None = None,
) -> Job:
    """One request for each prompt, with room of its own.

    Raises `InvalidRequest` or `NeverFits`; `blame` names the prompt's and the length's parameter.
    """
    samples = sampling.n if sampling.beam_width is not None else sampling.best_of or sampling.n
    width = max(samples, sampling.width)
    if len(prompts) * width > limits.sequences:
        raise InvalidRequest(
            "n",
            f"{len(prompts)} prompts times {width} make {len(prompts) * width} sequences; "
            f"one request may have at most {limits.sequences}",
        )
    logprobs = sampling.logprobs
    if samples > sampling.n and logprobs is None:
        logprobs = 0  # to rank by
    requests = []
    for number, prompt in enumerate(prompts):
        room = window.completion(len(prompt.tokens), sampling.max_tokens, default_max_tokens, blame)
        own = sampling.replace(
            n=samples,
            best_of=None,
            seed=sampling.seed or 0,
            stop=(),
            logprobs=logprobs,
            max_tokens=room,
        )
        name = f"{job_id}-{number}"
        requests.append(
            Request(name, prompt.tokens, own, priority=priority, salt=salt, adapter=adapter)
        )
    return Job(job_id, prompts, sampling, requests, reader)
