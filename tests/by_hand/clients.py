"""LiteLLM and LangChain against a running server, by hand: they are too large for every test run.

    pip install litellm langchain-openai          # not into .venv
    LITELLM_LOCAL_MODEL_COST_MAP=True python tests/by_hand/clients.py URL MODEL

Prints what each says; an assertion fails where a stream is not the answer.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import litellm  # type: ignore[import-not-found,unused-ignore]
from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel

QUESTION = "What is the capital of France? One word."
BEGINNING = "The capital of France is"


class Trip(BaseModel):
    city: Literal["Paris", "Rome"]
    days: Literal[1, 2]


def with_litellm(url: str, model: str) -> None:
    where: dict[str, Any] = {"api_base": url, "api_key": "any", "temperature": 0}
    chat: dict[str, Any] = {**where, "model": f"openai/{model}", "max_tokens": 64}
    chat["messages"] = [{"role": "user", "content": QUESTION}]
    whole = litellm.completion(**chat)
    options = {"include_usage": True}
    chunks = list(litellm.completion(**chat, stream=True, stream_options=options))
    streamed = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(streamed) == whole.choices[0].message.content
    print("chat:", whole.choices[0].message.content, whole.usage.total_tokens)
    said = litellm.completion(**chat, response_format=Trip).choices[0].message.content
    print("structured:", Trip.model_validate_json(said))
    try:
        litellm.completion(**chat | {"temperature": 3})
        raise AssertionError("a temperature of 3 is no mistake")
    except litellm.BadRequestError as error:
        print("refused:", error)
    text: dict[str, Any] = {**where, "model": f"text-completion-openai/{model}", "max_tokens": 8}
    plain = litellm.text_completion(**text, prompt=BEGINNING)
    pieces = litellm.text_completion(**text, prompt=BEGINNING, stream=True)
    assert "".join(each.choices[0].text or "" for each in pieces) == plain.choices[0].text
    print("completion:", plain.choices[0].text)


def with_langchain(url: str, model: str) -> None:
    where: dict[str, Any] = {"model": model, "base_url": url, "api_key": "any", "temperature": 0}
    for responses in (False, True):
        chat = ChatOpenAI(**where, max_tokens=64, stream_usage=True, use_responses_api=responses)
        whole = chat.invoke(QUESTION)
        first, *rest = chat.stream(QUESTION)
        total = first
        for each in rest:
            total += each
        assert total.text == whole.text
        assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
        print("responses:" if responses else "chat:", whole.text, whole.usage_metadata)
        print("structured:", chat.with_structured_output(Trip).invoke("Plan a trip"))
    text = OpenAI(**where, max_tokens=8)
    plain = text.invoke(BEGINNING)
    assert "".join(text.stream(BEGINNING)) == plain
    print("completion:", plain)


if __name__ == "__main__":
    _, url, model = sys.argv
    with_litellm(url, model)
    with_langchain(url, model)
