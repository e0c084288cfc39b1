"""Logprobs in the three shapes that clients know: completions, chat, and vLLM's prompt logprobs."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cluster.api.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from octavo.cluster.api.transcript import ShownToken
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.request import Logprob

_FLOOR = -9999.0  # JSON has no minus infinity; OpenAI sends this


def completion_logprobs(
    tokens: Sequence[ShownToken], count: int, base: int, tokenizer: Tokenizer
) -> CompletionLogprobs:
    """`base` is where the choice's own text begins in what the client gets (after an echo)."""
    result = CompletionLogprobs([], [], [], [])
    for offset, logprob in tokens:
        _append(result, logprob.token, logprob, base + offset, count, tokenizer)
    return result


def echoed_logprobs(
    prompt: Sequence[int],
    logprobs: Sequence[Logprob | None],
    count: int,
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool,
) -> CompletionLogprobs:
    """One entry a prompt token; nothing precedes the first, so its values are null."""
    result = CompletionLogprobs([], [], [], [])
    stream = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    offset = 0
    for token, logprob in zip(prompt, logprobs, strict=True):
        _append(result, token, logprob, offset, count, tokenizer)
        offset += len(stream.feed((token,)))
    return result


def chat_logprobs(tokens: Sequence[ShownToken], count: int, tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs(
        [
            TokenLogprob(
                tokenizer.token_text(logprob.token),
                max(logprob.logprob, _FLOOR),
                list(tokenizer.bytes_of(logprob.token)),
                [
                    TopLogprob(
                        tokenizer.token_text(token),
                        max(value, _FLOOR),
                        list(tokenizer.bytes_of(token)),
                    )
                    for token, value in logprob.top[:count]
                ],
            )
            for _, logprob in tokens
        ]
    )


def prompt_logprobs(
    logprobs: Sequence[Logprob | None], count: int, tokenizer: Tokenizer
) -> PromptLogprobs:
    """vLLM's extension: for each prompt token, token ids to their logprob, rank and text."""
    result: PromptLogprobs = []
    for entry in logprobs:
        if entry is None:
            result.append(None)
            continue
        ranked = [(token, value, rank) for rank, (token, value) in enumerate(entry.top[:count], 1)]
        if entry.token not in [token for token, _, _ in ranked]:
            ranked.append((entry.token, entry.logprob, entry.rank))
        result.append(
            {
                str(token): {
                    "logprob": max(value, _FLOOR),
                    "rank": rank,
                    "decoded_token": tokenizer.token_text(token),
                }
                for token, value, rank in ranked
            }
        )
    return result


def _append(
    result: CompletionLogprobs,
    token: int,
    logprob: Logprob | None,
    offset: int,
    count: int,
    tokenizer: Tokenizer,
) -> None:
    text = tokenizer.token_text(token)
    result.tokens.append(text)
    result.text_offset.append(offset)
    if logprob is None:
        result.token_logprobs.append(None)
        result.top_logprobs.append(None)
        return
    result.token_logprobs.append(max(logprob.logprob, _FLOOR))
    top: dict[str, float] = {}
    for other, value in logprob.top[:count]:
        top.setdefault(tokenizer.token_text(other), max(value, _FLOOR))
    top[text] = max(logprob.logprob, _FLOOR)
    result.top_logprobs.append(top)
