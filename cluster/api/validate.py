"""A client's body to engine requests, or to one clear refusal.

Everything that can be wrong with a request is found here, before the engine sees any of it: each
`InvalidRequest` names the parameter, its value and its bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from msgspec import UnsetType

from octavo.cluster.api.protocol import UNSERVED, SamplingFields
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.stats import EngineStats
from octavo.cluster.text.bad_words import spellings
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import EngineDead, InvalidRequest, NeverFits
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.sampling import MAX_BEAM_WIDTH, SamplingParams

T = TypeVar("T")
_INT32 = 2**31 - 1
_EXACT = 2**53  # up to here a float is one whole number, not one of several
_PARAM = re.compile(r"`\$\.(?P<param>\w+)")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_A_NUMBER = re.compile(rb"[:\[,]\s*-?(NaN|Infinity)")


def parse(raw: bytes, schema: type[T]) -> T:
    """The body as `schema`. Raises `InvalidRequest`, with an empty `param` where the body as a
    whole is at fault."""
    try:
        return _decode(raw, schema)
    except msgspec.ValidationError as error:
        where = _PARAM.search(str(error))
        param = where["param"] if where else ""
        raise InvalidRequest(param, f"{param or 'body'}: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("", "The body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"The body is not valid JSON: {error}"
        if _NOT_A_NUMBER.search(raw):
            message += "; NaN and Infinity are no JSON numbers"
        elif _SURROGATE.search(raw):
            message += "; every \\ud800..\\udfff escape needs its other half"
        raise InvalidRequest("", message) from error


def _decode(raw: bytes, schema: type[T]) -> T:
    """In one pass, but where an integer is written as 5.0, as JSON lets clients do: then all whole
    numbers are made integers first."""
    try:
        return msgspec.json.decode(raw, type=schema)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        try:
            plain = _WHOLE_NUMBERS.decode(raw)
        except OverflowError:  # of 1e999
            raise error from None
    return msgspec.convert(plain, schema, str_keys=True)


def _number(literal: str) -> int | float:
    value = float(literal)
    whole = int(value)
    return whole if whole == value and abs(whole) <= _EXACT else value


_WHOLE_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def refuse_unserved(body: msgspec.Struct) -> None:
    """Raises `InvalidRequest` for a field that would change the answer and is not served."""
    for name, harmless in UNSERVED.items():
        value = getattr(body, name, None)
        if value is not None and value not in harmless:
            raise InvalidRequest(name, f"{name} is not supported by this server; leave it out")


@dataclass(frozen=True, slots=True)
class Window:
    """How many tokens one sequence may have, prompt and completion together."""

    max_model_len: int
    pool_tokens: int

    @classmethod
    def of(cls, stats: Iterable[EngineStats]) -> Window:
        """The smallest of all replicas'. Raises `EngineDead` while there is none."""
        known = list(stats)
        if not known:
            raise EngineDead("no replica is up")
        return cls(
            min(each.max_model_len for each in known), min(each.capacity.tokens for each in known)
        )

    @property
    def tokens(self) -> int:
        return min(self.max_model_len, self.pool_tokens)

    def describe(self) -> str:
        if self.max_model_len <= self.pool_tokens:
            return f"This model's maximum context length is {self.max_model_len} tokens"
        return f"The KV cache of this server holds {self.pool_tokens} tokens"

    def completion(
        self, prompt_tokens: int, asked: int | None, default: int | None, names: tuple[str, str]
    ) -> int:
        """How many tokens may be generated. `asked` None: `default`, or all that fit.

        `names` are the parameters to blame: the prompt's and the completion length's.
        Raises `NeverFits` with the numbers.
        """
        room = self.tokens - prompt_tokens
        if room < 1:
            raise NeverFits(
                names[0],
                f"{self.describe()}, but the prompt has {prompt_tokens} tokens, which leaves no "
                "room for a completion; shorten the prompt",
            )
        if asked is None:
            return room if default is None else min(default, room)
        if asked > room:
            raise NeverFits(
                names[1],
                f"{self.describe()}, but {prompt_tokens + asked} were asked for: {prompt_tokens} "
                f"in the prompt and {names[1]} = {asked}; it can be at most {room} here",
            )
        return asked


def asked_max_tokens(body: SamplingFields, default: int | None) -> tuple[int | None, int | None]:
    """(asked, default) for `Window.completion`. Absent: the default; null: all that fit."""
    if isinstance(body.max_tokens, UnsetType):
        return None, default
    return body.max_tokens, None


def sampling_of(
    body: SamplingFields,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    defaults: Mapping[str, Any],
    *,
    seed: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """What the client asked for, checked, with `seed` and `defaults` where it gave none and the
    model's end tokens among `stop_token_ids`. A `grammar` ends with one even where they are to be
    ignored: behind its end nothing else may come."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    stop_ids = tuple(body.stop_token_ids or ())
    bias = body.logit_bias or {}
    allowed = tuple(body.allowed_token_ids or ())
    bad_words = tuple(body.bad_words or ())
    _at_most("stop", len(stops), limits.stops, "strings")
    _at_most("stop", max(map(len, stops), default=0), limits.stop_chars, "characters each")
    _at_most("stop_token_ids", len(stop_ids), limits.stop_token_ids, "ids")
    _at_most("logit_bias", len(bias), limits.logit_bias, "entries")
    _at_most("allowed_token_ids", len(allowed), tokenizer.vocab_size, "ids")
    _at_most("bad_words", len(bad_words), limits.bad_words, "words")
    _at_most("bad_words", max(map(len, bad_words), default=0), limits.stop_chars, "characters each")
    within_vocabulary("stop_token_ids", stop_ids, tokenizer.vocab_size)
    within_vocabulary("allowed_token_ids", allowed, tokenizer.vocab_size)
    within_vocabulary("logit_bias", bias, tokenizer.vocab_size)
    top_k = body.top_k if body.top_k is not None else defaults.get("top_k")
    if body.allowed_token_ids == []:
        raise InvalidRequest("allowed_token_ids", "allowed_token_ids must not be empty")
    given: dict[str, Any] = {
        **_beams_of(body),
        "n": body.n,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": top_k if top_k is None else min(top_k, tokenizer.vocab_size),
        "min_p": body.min_p,
        "min_tokens": body.min_tokens,
        "ignore_eos": body.ignore_eos,
        "include_stop_str_in_output": body.include_stop_str_in_output,
        "skip_special_tokens": body.skip_special_tokens,
    }
    if grammar is not None and body.use_beam_search:
        raise InvalidRequest(
            "use_beam_search",
            "use_beam_search cannot be combined with a grammar; ask for n samples instead",
        )
    return SamplingParams(
        **(dict(defaults) | {name: value for name, value in given.items() if value is not None}),
        best_of=None if body.use_beam_search else body.best_of or None,
        seed=seed if body.seed is None else body.seed,
        stop=stops,
        stop_token_ids=stop_ids
        if body.ignore_eos and grammar is None
        else tuple(dict.fromkeys(stop_ids + tokenizer.eos_ids)),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=bias,
        grammar=grammar,
        allowed_token_ids=allowed,
        bad_words=bad_words,
        bad_token_ids=spellings(bad_words, tokenizer),
    )


def _beams_of(body: SamplingFields) -> dict[str, Any]:
    """Beam search as vLLM had it: `best_of` beams, or `n`, of which the best `n` are answered."""
    if not body.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(body, name) not in (None, neutral):
                raise InvalidRequest(name, f"{name} needs use_beam_search to be true")
        return {}
    name = "n" if body.best_of is None else "best_of"
    width = (body.n or 1) if body.best_of is None else body.best_of
    if not 1 <= width <= MAX_BEAM_WIDTH:
        raise InvalidRequest(
            name, f"{name} must be between 1 and {MAX_BEAM_WIDTH} in a beam search, got {width}"
        )
    if body.n is not None and body.n > width:
        raise InvalidRequest("best_of", f"best_of must be at least n ({body.n}), got {width}")
    return {
        "beam_width": width,
        "length_penalty": body.length_penalty,
        "early_stopping": body.early_stopping,
    }


def priority_of(body: SamplingFields) -> int:
    priority = body.priority or 0
    if abs(priority) > _INT32:
        raise InvalidRequest(
            "priority", f"priority must be between -{_INT32} and {_INT32}, got {priority}"
        )
    return priority


def refuse_unstreamable(body: SamplingFields) -> None:
    """Raises `InvalidRequest` for what is only known once the answer is whole."""
    if not body.stream:
        return
    if body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs", "prompt_logprobs cannot be streamed")
    if body.best_of is not None and body.best_of > (body.n or 1) and not body.use_beam_search:
        raise InvalidRequest(
            "best_of",
            f"best_of {body.best_of} above n ranks whole answers and cannot be streamed",
        )


def wants_usage_chunk(body: SamplingFields) -> bool:
    """Whether a stream ends with a chunk of usage."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest("stream_options", "stream_options needs stream to be true")
    return bool(body.stream_options.include_usage)


def cache_scope(tenant: str, salt: str | None, limits: RequestLimits) -> str:
    """Who may share cached prefixes. With API keys `tenant` is the caller's key: the scope is a
    keyed hash, so that a client's salt only narrows its own and can name no one else's."""
    if salt == "":
        raise InvalidRequest("cache_salt", "cache_salt must not be empty; leave it out")
    _at_most("cache_salt", len(salt or ""), limits.salt_chars, "characters")
    if not tenant:
        return salt or ""
    key = blake2b(tenant.encode(), digest_size=32).digest()
    return blake2b((salt or "").encode(), key=key, digest_size=16).hexdigest()


def within_vocabulary(param: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raises `InvalidRequest` for the first id that the model has no embedding for."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                param, f"{param} has token id {token}; ids of this model are 0..{vocab_size - 1}"
            )


def _at_most(param: str, size: int, bound: int, what: str) -> None:
    if size > bound:
        raise InvalidRequest(param, f"{param} may have at most {bound} {what}, got {size}")
