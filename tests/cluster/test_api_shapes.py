"""OpenAI's answers and streams, field for field, against scripted engines."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx
import msgspec

from octavo.cluster.api.answers import ChatAnswer, ChatChunk, CompletionAnswer, ErrorAnswer
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.calls import HELLO, Connect, chat, complete, data_of, error_of, eventually
from tests.cluster.scripted import HANG, TOKENIZER, ScriptedEngine, Step, says
from tests.cluster.serving import MODEL


def test_a_chat_answer_has_every_field_of_the_spec(connected: Connect) -> None:
    with connected(ScriptedEngine(says("Hi 你好"))) as http:
        answer = chat(http, max_tokens=50).json()
    prompt = len(TOKENIZER.encode("user: Hello\nassistant: "))
    generated = len(TOKENIZER.encode("Hi 你好")) + 1
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi 你好", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer["choices"] == [choice]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"].startswith("octavo-")
    assert isinstance(answer["created"], int)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == generated
    assert usage["total_tokens"] == prompt + generated
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_completion_has_every_field_of_the_spec(connected: Connect) -> None:
    with connected(ScriptedEngine(says("Hello"))) as http:
        answer = complete(http).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [choice]


def test_a_chat_stream_is_role_text_finish_usage_done(connected: Connect) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with connected(ScriptedEngine(says("Hi!"))) as http:
        *chunks, done = data_of(chat(http, **options))
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *middle, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "Hi!"
    assert finish["choices"][0]["delta"] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [
        *[None] * (len(chunks) - 2),
        "stop",
    ]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(TOKENIZER.encode("Hi!")) + 1
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_stream_shows_each_token_when_it_is_made(connected: Connect) -> None:
    """Also one that is no whole character yet; and a chat says who speaks no sooner, because
    clients that measure a server take its first chunk for the first token."""
    half, *_ = says("😀")(Request("", [1], SamplingParams()))

    def starts(http: httpx.Client, path: str) -> list[Any]:
        body = {"model": MODEL, "prompt": "Say", "messages": HELLO, "stream": True}
        chunks = []
        with (
            contextlib.suppress(httpx.ReadTimeout),
            http.stream("POST", path, json=body, timeout=0.5) as answer,
        ):
            for line in filter(None, answer.iter_lines()):
                chunks.append(json.loads(line.removeprefix("data: "))["choices"][0])
        return chunks

    def one_token(request: Request) -> list[Step]:
        assert isinstance(half, TokenEvent)
        return [TokenEvent(request.id, half.tokens), HANG]

    with connected(ScriptedEngine(one_token)) as http:
        (choice,) = starts(http, "/v1/completions")
        assert choice["text"] == ""
        deltas = [choice["delta"] for choice in starts(http, "/v1/chat/completions")]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": ""}]
    with connected(ScriptedEngine(lambda _: [HANG]), submit_grace=0.0) as http:
        assert starts(http, "/v1/chat/completions") == []


def test_tokens_of_one_step_come_in_one_chunk(connected: Connect) -> None:
    text = "The quick brown fox jumps"
    with connected(ScriptedEngine(says(text, Finish.LENGTH, step=3))) as http:
        *chunks, _ = data_of(complete(http, stream=True, max_tokens=99))
    count = len(TOKENIZER.encode(text))
    assert len(chunks) == -(-count // 3)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


def test_chat_logprobs(connected: Connect) -> None:
    with connected(ScriptedEngine(says("é!"))) as http:
        choice = chat(http, logprobs=True, top_logprobs=2).json()["choices"][0]
        streamed = data_of(chat(http, logprobs=True, top_logprobs=2, stream=True))
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert bytes(b for entry in content for b in entry["bytes"]) == "é!</s>".encode()
    assert [entry["logprob"] for entry in content] == [-1.0 - i for i in range(len(content))]
    assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]
    assert content[0]["top_logprobs"][1]["logprob"] == -50
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed[:-1]]
    assert [entry for part in parts if part for entry in part["content"]] == content


def test_completion_logprobs_and_their_offsets(connected: Connect) -> None:
    with connected(ScriptedEngine(says("a😀b", Finish.LENGTH))) as http:
        logprobs = complete(http, logprobs=1).json()["choices"][0]["logprobs"]
    tokens = TOKENIZER.encode("a😀b")
    assert logprobs["tokens"] == [TOKENIZER.token_text(token) for token in tokens]
    assert logprobs["tokens"][0] == "a"
    assert logprobs["text_offset"] == [0, *[1] * (len(tokens) - 2), 2]
    assert logprobs["token_logprobs"] == [-1.0 - index for index in range(len(tokens))]
    assert logprobs["top_logprobs"][0] == {"a": -1.0}


def test_models_and_the_small_routes(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), model_path="/models/m", created=123) as http:
        listed = http.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == [MODEL, "alias"]
        one = http.get(f"/v1/models/{MODEL}").json()
        assert one == listed["data"][0]
        assert (one["object"], one["created"], one["max_model_len"]) == ("model", 123, 200)
        assert (one["root"], one["parent"]) == ("/models/m", None)
        assert [each["object"] for each in one["permission"]] == ["model_permission"]
        assert error_of(http.get("/v1/models/none"), 404, "model")
        assert http.get("/version").json()["version"]
        assert http.get("/health").status_code == 200
        assert "/v1/completions" in http.get("/").json()["endpoints"]
        assert "vllm:num_requests_running" in http.get("/metrics").text
        tokens = TOKENIZER.encode("Hello 你")
        answer = http.post(
            "/tokenize", json={"prompt": "Hello 你", "return_token_strs": True}
        ).json()
        assert answer["tokens"] == tokens
        assert answer["count"] == len(tokens) == len(answer["token_strs"])
        assert answer["max_model_len"] == 200
        of_chat = http.post("/tokenize", json={"messages": HELLO}).json()
        assert TOKENIZER.decode(of_chat["tokens"]) == "user: Hello\nassistant: "
        assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "Hello 你"}
        error_of(http.post("/detokenize", json={"tokens": [10**6]}), 400, "tokens")
        error_of(http.post("/tokenize", json={}), 400, "prompt")


def test_the_description_covers_every_route_and_what_it_takes_and_gives(
    connected: Connect,
) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        described = http.get("/openapi.json").json()
        served = {*http.get("/").json()["endpoints"], "/", "/v1/models/{name}"}
        assert set(described["paths"]) == served - {"/openapi.json", "/dashboard"}
        assert "{name:path}" not in json.dumps(described)
        for path, schema in [
            ("completions", "CompletionRequest"),
            ("chat/completions", "ChatRequest"),
        ]:
            body = described["paths"][f"/v1/{path}"]["post"]["requestBody"]
            reference = {"$ref": f"#/components/schemas/{schema}"}
            assert body["content"]["application/json"]["schema"] == reference
            assert "top_k" in described["components"]["schemas"][schema]["properties"]
        options = {"logprobs": 1, "prompt_logprobs": None}
        msgspec.json.decode(complete(http, **options).content, type=CompletionAnswer)
        msgspec.json.decode(chat(http, logprobs=True).content, type=ChatAnswer)
        for chunk in data_of(chat(http, stream=True, stream_options={"include_usage": True}))[:-1]:
            msgspec.convert(chunk, ChatChunk)
        refused = complete(http, n=0)
        msgspec.json.decode(refused.content, type=ErrorAnswer)


def test_a_stop_string_across_tokens_never_shows_and_aborts_the_engine(connected: Connect) -> None:
    engine = ScriptedEngine(lambda request: [*says("one END two")(request)[:-1], HANG])
    with connected(engine) as http:
        *chunks, _ = data_of(complete(http, stream=True, stop=[" END"], logprobs=1, max_tokens=50))
        assert eventually(lambda: not engine.live)
        whole = complete(http, stop=[" END"], max_tokens=50).json()["choices"][0]
        assert eventually(lambda: not engine.live)
    assert (whole["text"], whole["finish_reason"]) == ("one", "stop")
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "one"
    assert choices[-1]["finish_reason"] == "stop"
    shown = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    assert "".join(shown) == "one"


def test_text_held_back_is_flushed_when_the_answer_ends(connected: Connect) -> None:
    with connected(ScriptedEngine(says("the end", Finish.LENGTH))) as http:
        *chunks, _ = data_of(complete(http, stream=True, stop=["endZZZ"], max_tokens=50))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the end"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_stop_string_or_end_token_may_be_included(connected: Connect) -> None:
    with connected(ScriptedEngine(says("one END two"))) as http:
        stopped = complete(http, stop="END", include_stop_str_in_output=True, max_tokens=50)
        assert stopped.json()["choices"][0]["text"] == "one END"
        ended = complete(
            http, include_stop_str_in_output=True, skip_special_tokens=False, max_tokens=50
        )
        assert ended.json()["choices"][0]["text"] == "one END two</s>"
        plain = complete(http, skip_special_tokens=False, max_tokens=50)
        assert plain.json()["choices"][0]["text"] == "one END two"


def test_stop_strings_do_not_count_before_min_tokens(connected: Connect) -> None:
    with connected(ScriptedEngine(says("abab"))) as http:
        count = len(TOKENIZER.encode("ab"))
        answer = complete(http, stop="b", min_tokens=count, max_tokens=50).json()
    assert answer["choices"][0]["text"] == "aba"


def test_no_half_character_is_ever_sent(connected: Connect) -> None:
    text = "👩‍👩‍👧 你好 é"
    with connected(ScriptedEngine(says(text))) as http:
        *chunks, _ = data_of(chat(http, stream=True))
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)
