"""How the next token of a sequence is chosen. Travels from the API to the workers unchanged.

Names, defaults and meanings are vLLM's, those of beam search transformers'. The engine reads
token-level fields and `n`; `stop` and `best_of` belong to the front, which cuts and ranks the text.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import Grammar

MAX_LOGPROBS = 20
MAX_N = 128
MAX_BEAM_WIDTH = 64
MAX_SEED = 2**63 - 1

# What these fields may be, both ends included.
BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "best_of": (1, MAX_N),
    "beam_width": (1, MAX_BEAM_WIDTH),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}

_UINT64 = 2**64 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Raises `InvalidRequest` naming the parameter, its value and its bounds."""

    n: int = 1  # samples, or the best so many beams
    best_of: int | None = None
    beam_width: int | None = None  # beam search, which draws nothing: temperature is not looked at
    length_penalty: float = 1.0  # a beam's score is its logprob / length ** length_penalty
    early_stopping: bool | Literal["never"] = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: all tokens
    min_p: float = 0.0
    seed: int | None = None  # None: the front draws one, so that the run can be repeated
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # the front adds the model's end tokens unless ignore_eos
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: as many as the context and the pool allow
    min_tokens: int = 0
    logprobs: int | None = None  # the sampled token's, and this many of the likeliest
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    grammar: Grammar | None = None  # the answer is a sentence of it, or the beginning of one
    allowed_token_ids: tuple[int, ...] = ()  # none: all
    bad_words: tuple[str, ...] = ()  # the front says in `bad_token_ids` how they may be spelled
    bad_token_ids: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):  # the convenient spellings of offline use
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                msgspec.structs.force_setattr(self, name, tuple(value or ()))
        self._verify()

    def _verify(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # nor is NaN
                raise InvalidRequest(name, f"{name} must be between {low} and {high}, got {value}")
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequest(
                "best_of", f"best_of must be at least n ({self.n}), got {self.best_of}"
            )
        if self.beam_width is not None:
            self._verify_beams(self.beam_width)
        if not (0 < self.repetition_penalty < math.inf):
            raise InvalidRequest(
                "repetition_penalty",
                f"repetition_penalty must be above 0, got {self.repetition_penalty}",
            )
        if self.top_k < -1:
            raise InvalidRequest(
                "top_k", f"top_k must be 0 or -1 (all tokens) or positive, got {self.top_k}"
            )
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise InvalidRequest("seed", f"seed must fit in 64 bits, got {self.seed}")
        if "" in self.stop:
            raise InvalidRequest("stop", "stop must not contain an empty string")
        if self.bad_words and not all(map(str.strip, self.bad_words)):
            raise InvalidRequest("bad_words", "bad_words must not contain an empty word")
        if self.allowed_token_ids:
            self._verify_allowed()
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequest(
                "max_tokens", f"max_tokens must be at least 0, got {self.max_tokens}"
            )
        if self.min_tokens < 0 or (
            self.max_tokens is not None and self.min_tokens > self.max_tokens
        ):
            raise InvalidRequest(
                "min_tokens",
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), "
                f"got {self.min_tokens}",
            )
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise InvalidRequest("logit_bias", f"logit_bias has a negative token id {token}")
            if not -100 <= bias <= 100:
                raise InvalidRequest(
                    "logit_bias", f"logit_bias of token {token} must be in -100..100, got {bias}"
                )

    def _verify_allowed(self) -> None:
        """A token must be left to choose at every step, whatever came before."""
        left = set(self.allowed_token_ids) - {tokens[-1] for tokens in self.bad_token_ids}
        if self.min_tokens:
            left -= set(self.stop_token_ids)
        if not left:
            raise InvalidRequest(
                "allowed_token_ids",
                f"allowed_token_ids {list(self.allowed_token_ids)} leaves no token to choose, as "
                "bad_words, or stop tokens before min_tokens, may forbid all of them",
            )

    def _verify_beams(self, width: int) -> None:
        if self.n > width:
            raise InvalidRequest(
                "n", f"n must be at most the number of beams ({width}), got {self.n}"
            )
        if not math.isfinite(self.length_penalty):
            raise InvalidRequest(
                "length_penalty", f"length_penalty must be finite, got {self.length_penalty}"
            )
        if self.stop:
            raise InvalidRequest(
                "stop", "beam search takes no stop strings; use stop_token_ids instead"
            )
        if self.grammar is not None:
            raise InvalidRequest(
                "grammar", "beam search takes no grammar; ask for n samples instead"
            )
        if self.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids", "beam search takes no allowed_token_ids; use logit_bias"
            )

    @property
    def width(self) -> int:
        """Token streams that the engine runs side by side for one request."""
        return self.n if self.beam_width is None else self.beam_width

    @property
    def beam_candidates(self) -> int:
        """Tokens that a worker names for each beam: enough that `beam_width` are left when every
        stop token is among them."""
        assert self.beam_width is not None
        return max(2, 1 + len(set(self.stop_token_ids))) * self.beam_width

    @property
    def greedy(self) -> bool:
        """Temperature 0 or a nucleus of one token: the random number cannot matter."""
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, verified again."""
        return msgspec.structs.replace(self, **changes)


def mix_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request: distinct streams, the first being the seed itself.

    SplitMix64's finaliser (Steele, Lea, Flood 2014), so that neighbouring indices are unrelated.
    """
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _UINT64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _UINT64
    return (z ^ (z >> 31)) >> 1
