"""The whole server over a tiny model, as both kinds of client see it."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.serving import MODEL

CONTEXT = 512
PROMPT = "Printers fold a sheet"
LONG = "An octavo is a sheet folded into eight leaves, and a page is one side of a leaf. " * 6


class Server:
    """One server, as both kinds of client see it."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)

    def close(self) -> None:
        self.http.close()
        self.openai.close()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json={"model": MODEL, **body})

    def complete(self, **fields: Any) -> dict[str, Any]:
        answer = self.post("completions", {"prompt": PROMPT, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def text(self, **fields: Any) -> str:
        text: str = self.complete(**fields)["choices"][0]["text"]
        return text

    def stream(self, path: str = "completions", /, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that must end well."""
        base = {"prompt": PROMPT, "messages": [{"role": "user", "content": "Hi"}]}
        answer = self.post(path, {**base, "temperature": 0, "stream": True, **fields})
        assert answer.status_code == 200, answer.text
        *chunks, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert done == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]

    def both(self, **fields: Any) -> str:
        """The text of a completion that must be the same as a stream and not."""
        text = self.text(**fields)
        assert joined(self.stream(**fields)) == text
        return text

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        return ids

    def refuses(self, body: dict[str, Any], param: str | None, path: str = "completions") -> str:
        """Asserts a 400 in OpenAI's shape, as a stream and not, and that the server goes on; the
        message."""
        said = body.keys() & {"stream", "stream_options"}
        messages: list[str] = []
        ways: list[dict[str, Any]] = [{}] if said else [{"stream": True}, {"stream": False}]
        for way in ways:
            answer = self.post(path, {**body, **way})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param, error
            messages.append(error["message"])
        assert self.http.get("/health").status_code == 200
        return messages[-1]

    def metric(self, name: str) -> float:
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
        raise KeyError(name)

    def settles(self) -> bool:
        """Whether nothing is left of any request; at once, but for a machine that is busy."""
        names = ["vllm:num_requests_running", "vllm:num_requests_waiting"]
        names.append("vllm:kv_cache_usage_perc")
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if not any(self.metric(name) for name in names):
                return True
            time.sleep(0.01)
        return False


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream of completions or chat chunks."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
