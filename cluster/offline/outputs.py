"""What the offline API returns, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.cluster.api.answers import FinishReason
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Logprob


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log of a token's probability; `rank` counts from 1."""

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = dict[int, TokenLogprob]
"""By token id: the chosen token, and the likeliest ones as far as they were asked for."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's answers. `token_ids` include the token that ended it; `text` does not.

    `logprobs` are None unless `SamplingParams.logprobs` asked for them. `cumulative_logprob`, their
    sum, is there too where `best_of` or beam search ranked the answers. Beams have the `score` that
    ranked them.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. `prompt` is None where token ids were given.

    `num_cached_tokens` counts prompt tokens that the prefix cache had. `prompt_logprobs` has one
    entry a prompt token, the first being None, where `SamplingParams.prompt_logprobs` asked.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finished: bool = True


def by_token(tokenizer: Tokenizer, entry: Logprob) -> TokenLogprobs:
    """The engine's entry of one token, the chosen token first."""
    chosen = TokenLogprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token))
    likeliest = {
        token: TokenLogprob(logprob, rank, tokenizer.token_text(token))
        for rank, (token, logprob) in enumerate(entry.top, 1)
    }
    return {entry.token: chosen} | likeliest | {entry.token: chosen}


def of_prompt(
    tokenizer: Tokenizer, entries: Sequence[Logprob | None] | None
) -> list[TokenLogprobs | None] | None:
    """The engine's prompt logprobs in the same form."""
    if entries is None:
        return None
    return [None if entry is None else by_token(tokenizer, entry) for entry in entries]
