"""A model that knows of tools and reasons, as far as its template and its words go."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from octavo.cluster.api.answers import AssistantMessage, ChatChunk, ChatDelta
from octavo.cluster.api.message import whole_message
from octavo.cluster.text.tokens import Tokenizer
from tests.cluster.calls import chat, data_of
from tests.cluster.text_models import byte_level

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}{{ ' ' + m.name if m.name }}: {{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if thinking %}<think>\n{% endif %}{% endif %}"
)
TALKER = Tokenizer(byte_level(), eos_ids=[1], chat_template=TEMPLATE)
AUTO: dict[str, Any] = {
    "tokenizer": TALKER,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "It rains?", "parameters": CITY},
}
ADD = {"type": "function", "function": {"name": "add"}}
TOOLS = [WEATHER, ADD]
PARIS = '{"city": "Paris, 雨"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'


def joined(http: httpx.Client, **fields: Any) -> list[tuple[AssistantMessage, str]]:
    """Each choice of a stream put together: its message, and why it ended."""
    *events, done = data_of(chat(http, stream=True, **fields))
    assert done == "[DONE]"
    deltas: dict[int, list[ChatDelta]] = {}
    reasons: dict[int, str] = {}
    for event in events:
        for choice in msgspec.convert(event, ChatChunk).choices:
            assert choice.index not in reasons, "nothing follows the reason"
            deltas.setdefault(choice.index, []).append(choice.delta)
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    assert [each[0].role for each in deltas.values()] == ["assistant"] * len(deltas)
    return [(whole_message(deltas[index]), reasons[index]) for index in sorted(deltas)]


def answered(http: httpx.Client, **fields: Any) -> list[tuple[AssistantMessage, str]]:
    """The same of an answer that is not streamed."""
    answer = chat(http, **fields)
    assert answer.status_code == 200, answer.text
    return [
        (msgspec.convert(choice["message"], AssistantMessage), choice["finish_reason"])
        for choice in answer.json()["choices"]
    ]


def calls_of(message: AssistantMessage) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
