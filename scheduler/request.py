"""What comes into the scheduler and what goes out: requests and token events.

Both are plain msgpack structures, so that they cross process borders without pickle. Engine and
front exchange token ids only; text never enters here.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from octavo.scheduler.sampling import SamplingParams


class Finish(StrEnum):
    """Why a sequence ended. Values are OpenAI's `finish_reason`, plus two of our own."""

    STOP = "stop"  # an end token or a stop token id (`TokenEvent.stop_token` says which)
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt to be continued, in `sampling.n` samples or by beam search.

    `sampling.seed` and `sampling.max_tokens` are set by the front before a request gets here;
    sample i draws with `mix_seed(seed, i)`. `salt` scopes the prefix cache: only requests with
    equal salts share blocks. So does `adapter`, the name of the weights beside the model's own.
    Lower `priority` runs first (vLLM's rule); `arrived` is seconds of the engine's clock.

    `resumed` is for a request that another engine had taken and did not end: what that one gave,
    sample by sample, None for a sample that has ended; empty where it gave nothing. The request
    goes on from there as if it had been preempted. It is None for a new one.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams
    arrived: float = 0.0
    priority: int = 0
    salt: str = ""
    adapter: str = ""
    resumed: list[list[int] | None] | None = None

    @property
    def live_samples(self) -> list[int]:
        """Those that are yet to end, by index."""
        if not self.resumed:
            return list(range(self.sampling.n))
        return [index for index, given in enumerate(self.resumed) if given is not None]


class Logprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural log of the probability of one token under the unmodified logits.

    `rank` counts from 1; `top` are the likeliest (token id, logprob), best first.
    """

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]] = []


class TokenEvent(msgspec.Struct, array_like=True, gc=False):
    """New tokens of one sample of a request, the one numbered `index`. Its last event has `finish`
    set; a request has ended when all its `n` samples have, or with the first ABORT or ERROR.

    Beams come whole, at the end, best first: `index` is the rank, `score` what ranked them, and
    `cumulative_logprob` the sum over the beam's tokens.

    `logprobs` has one entry a token where they were asked for. `prompt_logprobs` comes once, with
    one entry a prompt token, the first being None. `cached_tokens` counts prompt tokens that were
    found in the prefix cache at first admission; recomputing after preemption is not a hit. It is
    told with the first event of a sample, and may be 0 in later ones.
    """

    request_id: str
    tokens: list[int]
    finish: Finish | None = None
    stop_token: int | None = None
    logprobs: list[Logprob] | None = None
    prompt_logprobs: list[Logprob | None] | None = None
    cached_tokens: int = 0
    error: str | None = None
    index: int = 0
    cumulative_logprob: float | None = None
    score: float | None = None
