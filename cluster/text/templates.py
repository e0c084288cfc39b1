"""A conversation to prompt text, through the model's own chat template.

The template is code that came with the model; it runs in transformers' sandbox. What goes wrong in
it is nearly always the conversation's fault (roles out of order), so its message goes to the user.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from octavo.scheduler.errors import InvalidRequest

_RESERVED = {"messages", *inspect.signature(render_jinja_template).parameters} - {"kwargs"}


def render_chat(
    template: str | None,
    messages: Sequence[dict[str, Any]],
    *,
    tools: Sequence[dict[str, Any]] = (),
    special_tokens: dict[str, str],
    add_generation_prompt: bool,
    template_kwargs: dict[str, Any],
) -> str:
    """`tools` are OpenAI's, which templates know. Raises `InvalidRequest` naming `messages`,
    `tools` or `chat_template_kwargs`."""
    if template is None:
        raise InvalidRequest(
            "messages",
            "this model has no chat template, so it cannot take messages; use /v1/completions",
        )
    reserved = sorted(_RESERVED & template_kwargs.keys())
    if reserved:
        raise InvalidRequest(
            "chat_template_kwargs", f"chat_template_kwargs must not set {reserved[0]}"
        )
    if tools and "tools" not in template:
        raise InvalidRequest(
            "tools",
            "this model's chat template has no place for tools, so it would not know of them; "
            "describe them in a message",
        )
    plain = [_plain(message, "developer" in template) for message in messages]
    try:
        result: Any = render_jinja_template(
            conversations=[plain],
            tools=list(tools) or None,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **{**special_tokens, **template_kwargs},
        )
    except jinja2.TemplateError as error:
        raise InvalidRequest(
            "messages", f"the model's chat template refused the messages: {error}"
        ) from error
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            "messages", "the model's chat template cannot render these messages"
        ) from error
    texts, _ = result
    return str(texts[0])


def _plain(message: dict[str, Any], knows_developer: bool) -> dict[str, Any]:
    """Content as one string, and a role that the template knows."""
    role = message["role"]
    if role == "developer" and not knows_developer:
        role = "system"
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    return {**message, "role": role, "content": content or ""}
