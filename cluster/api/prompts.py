"""A client's prompt in each of its spellings, to token ids.

Text is rendered and tokenized off the event loop once it is long enough to be felt there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from octavo.cluster.api.protocol import CompletionRequest, ContentPart, Message
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.api.tools import past_calls
from octavo.cluster.api.validate import within_vocabulary
from octavo.cluster.text.reasoning import END, opens_reasoning
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest, NeverFits

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_LONG = 8192  # characters; about a millisecond of tokenizing


class Prompt(NamedTuple):
    """`text` is what the client wrote, None where it sent token ids."""

    tokens: list[int]
    text: str | None


async def tokenize(
    tokenizer: Tokenizer, text: str, param: str, limit: int, *, add_special_tokens: bool
) -> Prompt:
    """Raises `InvalidRequest` naming `param` for an empty text, or one that is surely longer than
    `limit` tokens, or one whose tokens the model does not know."""
    if tokenizer.surely_longer_than(text, limit):
        raise NeverFits(
            param, f"{param} has {len(text)} characters, more than fit in {limit} tokens"
        )
    if len(text) > _LONG:
        tokens = await asyncio.to_thread(
            tokenizer.encode, text, add_special_tokens=add_special_tokens
        )
    else:
        tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not tokens:
        raise InvalidRequest(param, f"{param} must not be empty")
    within_vocabulary(param, (max(tokens),), tokenizer.vocab_size)
    return Prompt(tokens, text)


def last_tokens(prompt: Prompt, asked: int | None, room: int) -> Prompt:
    """At most `asked` tokens of the prompt, its last ones; for -1 as many as leave room, of `room`
    tokens, for one more. vLLM's `truncate_prompt_tokens`."""
    if asked is None:
        return prompt
    if asked < -1 or asked == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be a number of tokens or -1, got {asked}",
        )
    most = max(1, room - 1) if asked == -1 else asked
    return prompt if len(prompt.tokens) <= most else Prompt(prompt.tokens[-most:], None)


async def completion_prompts(
    body: CompletionRequest, tokenizer: Tokenizer, limits: RequestLimits, limit: int
) -> list[Prompt]:
    """One prompt a text or id list, in the client's order."""
    special = body.add_special_tokens is not False
    cut, room = body.truncate_prompt_tokens, limit
    if cut is not None:
        limit = limits.body_bytes  # any text may be cut to what fits
    prompt = body.prompt
    if prompt is None or prompt == []:
        raise InvalidRequest("prompt", "prompt must not be empty: a text, token ids, or a list")
    items: Sequence[str | int | list[int]] = [prompt] if isinstance(prompt, str) else prompt
    if all(isinstance(item, int) for item in items):
        items = [[item for item in items if isinstance(item, int)]]
    if len(items) > limits.prompts:
        raise InvalidRequest(
            "prompt", f"prompt may have at most {limits.prompts} items, got {len(items)}"
        )
    if len({type(item) for item in items}) != 1:
        raise InvalidRequest("prompt", "prompt must hold only texts, only ids, or only id lists")
    prompts = []
    for item in items:
        if isinstance(item, str):
            one = await tokenize(tokenizer, item, "prompt", limit, add_special_tokens=special)
        elif isinstance(item, list) and item:
            within_vocabulary("prompt", (min(item), max(item)), tokenizer.vocab_size)
            one = Prompt(item, None)
        else:
            raise InvalidRequest("prompt", "prompt must not hold an empty list of token ids")
        prompts.append(last_tokens(one, cut, room))
    return prompts


async def chat_prompt(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    limits: RequestLimits,
    limit: int,
    *,
    add_generation_prompt: bool,
    template_kwargs: dict[str, Any] | None,
    tools: Sequence[dict[str, Any]] = (),
    reasoning: bool = True,
) -> Prompt:
    """A conversation, and the tools that may be called in it, through the model's chat template.
    Without `reasoning`, a block of it that the template has begun is closed at once."""
    if not messages:
        raise InvalidRequest("messages", "messages must not be empty")
    if len(messages) > limits.messages:
        raise InvalidRequest(
            "messages", f"messages may have at most {limits.messages} items, got {len(messages)}"
        )
    plain = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    _name_outputs(plain)
    render = partial(
        tokenizer.render_chat,
        plain,
        add_generation_prompt=add_generation_prompt,
        template_kwargs=template_kwargs,
        tools=tools,
    )
    long = bool(tools) or sum(len(message["content"] or "") for message in plain) > _LONG
    text = await asyncio.to_thread(render) if long else render()
    if not reasoning and opens_reasoning(text):
        text = f"{text.rstrip()}\n\n{END}\n\n"
    return await tokenize(tokenizer, text, "messages", limit, add_special_tokens=False)


def _message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role",
            f"{where}.role must be one of {', '.join(ROLES)}, got {message.role!r}",
        )
    for name in ("function_call", "audio"):
        if getattr(message, name) not in (None, []):
            raise InvalidRequest(f"{where}.{name}", f"{where}.{name} is not supported here")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content", f"{where}.content must be a text or text parts")
    content: Any = message.content
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        content = "\n".join(parts)
    role = (
        "tool" if message.role == "function" else message.role
    )  # its name before there were tools
    plain: dict[str, Any] = {"role": role, "content": content}
    if message.tool_calls:
        if message.role != "assistant":
            raise InvalidRequest(
                f"{where}.tool_calls", f"{where}.tool_calls is only for the role assistant"
            )
        plain["tool_calls"] = past_calls(message.tool_calls, f"{where}.tool_calls")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    return plain


def _name_outputs(messages: Sequence[dict[str, Any]]) -> None:
    """Gives each tool's output the tool's name, which some templates want and clients leave out."""
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
    }
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])


def _part(part: ContentPart, where: str) -> str:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        raise InvalidRequest(
            where, f"{where} must be a part of type text with its text, got type {part.type!r}"
        )
    return text
