"""One API call as engine work: which sequences it needs, and which of them it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cluster.api.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from octavo.cluster.api.generation import Generation
from octavo.cluster.api.prompts import Prompt
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.api.transcript import Transcript
from octavo.cluster.api.validate import Window
from octavo.cluster.client import EngineClient
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams, mix_seed


@dataclass(frozen=True, slots=True)
class Job:
    """`requests` are prompt-major: sequence s continues prompt s // width. `sampling` is what the
    client asked for."""

    id: str
    prompts: list[Prompt]
    sampling: SamplingParams
    requests: list[Request]

    @property
    def width(self) -> int:
        """Sequences a prompt."""
        return self.sampling.best_of or self.sampling.n

    @property
    def ranked(self) -> bool:
        """Whether more sequences are computed than are answered with."""
        return self.width > self.sampling.n

    def start(self, client: EngineClient, tokenizer: Tokenizer) -> Generation:
        """To be entered with `async with`; nothing runs before."""
        stops = StopStrings(self.sampling.stop)
        transcripts = [
            Transcript(tokenizer, request, self.sampling, stops) for request in self.requests
        ]
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
        """Each prompt counts once; every computed sequence counts."""
        prompt = sum(len(each.tokens) for each in self.prompts)
        generated = sum(each.generated for each in transcripts)
        cached = sum(each.cached_tokens for each in transcripts[:: self.width])
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=CompletionTokensDetails(),
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
) -> Job:
    """Spreads the prompts over sequences, each with its own seed and its own room.

    Raises `InvalidRequest` or `NeverFits`; `blame` names the prompt's and the length's parameter.
    """
    width = sampling.best_of or sampling.n
    if len(prompts) * width > limits.sequences:
        raise InvalidRequest(
            "n",
            f"{len(prompts)} prompts times {width} make {len(prompts) * width} sequences; "
            f"one request may have at most {limits.sequences}",
        )
    logprobs = sampling.logprobs
    if width > sampling.n and logprobs is None:
        logprobs = 0  # to rank by
    requests = []
    for number, prompt in enumerate(prompts):
        room = window.completion(len(prompt.tokens), sampling.max_tokens, default_max_tokens, blame)
        base = sampling.replace(n=1, best_of=None, stop=(), logprobs=logprobs, max_tokens=room)
        requests += [
            Request(
                id=f"{job_id}-{number * width + choice}",
                prompt=prompt.tokens,
                sampling=base.replace(seed=mix_seed(base.seed or 0, choice)),
                priority=priority,
                salt=salt,
            )
            for choice in range(width)
        ]
    return Job(job_id, prompts, sampling, requests)
