"""What is sent: one encoded JSON body for each request, made before the first is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from octavo.cluster.bench.prompts import UNKNOWN_VOCABULARY, Prompts, Words, ordinary_tokens
from octavo.cluster.traces.request import Request
from octavo.scheduler.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.cluster.text.tokens import Tokenizer

PromptFormat: TypeAlias = Literal["ids", "text"]
CHAT = "chat/completions"


class Bodies:
    """For one endpoint of one model. `made_up` is whether a prompt was made: of `ids` unless it
    goes to a chat or `text` is asked for. Raises `InvalidRequest` where that cannot be."""

    def __init__(
        self,
        model: str,
        *,
        chat: bool,
        prompt_format: PromptFormat | None,
        tokenizer: Tokenizer | None,
        seed: int,
        fields: Mapping[str, Any],
    ) -> None:
        if chat and prompt_format == "ids":
            raise InvalidRequest(
                "prompt_format", "prompt_format ids is for completions; a chat takes text"
            )
        self._chat = chat
        self._text = chat or prompt_format == "text"
        self._tokenizer = tokenizer
        self._seed = seed
        self._make: Callable[[Request], str | list[int]] | None = None
        self._fields = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }

    @property
    def made_up(self) -> bool:
        return self._make is not None

    def encode(self, request: Request) -> bytes:
        """The body of one request."""
        prompt = request.text if request.text is not None else self._made(request)
        if self._chat:
            own: dict[str, Any] = {
                "messages": [{"role": "user", "content": prompt}],
                "max_completion_tokens": request.output_len,
            }
        else:
            own = {"prompt": prompt, "max_tokens": request.output_len}
        return msgspec.json.encode({**own, **self._fields})

    def _made(self, request: Request) -> str | list[int]:
        if self._make is None:
            self._make = self._maker()
        return self._make(request)

    def _maker(self) -> Callable[[Request], str | list[int]]:
        if not self._text:
            known = self._tokenizer
            return Prompts(
                UNKNOWN_VOCABULARY if known is None else ordinary_tokens(known), self._seed
            ).tokens
        if self._tokenizer is None:
            raise InvalidRequest(
                "tokenizer",
                "prompts that are text need the model's tokenizer: name its directory or hub model "
                "with --tokenizer",
            )
        words = Words(self._tokenizer)
        prompts = Prompts(words.tokens, self._seed)
        return lambda request: words.text(prompts.tokens(request))
