"""Nothing of a prompt is ever written, unless that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from octavo.cluster.api.request_log import MOST_CHARACTERS, log_requests
from octavo.scheduler.errors import EngineDead, RequestFailed
from octavo.scheduler.request import Request
from tests.cluster.calls import Connect, chat, complete
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, Step, says

SECRET = "my grandmother's recipe"


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is said where requests are logged."""
    said: list[str] = []
    log_requests(said.append)
    yield said
    log = logging.getLogger("octavo.requests")
    log.handlers, log.propagate = [], True
    log.setLevel(logging.NOTSET)


@pytest.mark.parametrize("stream", [False, True])
def test_no_prompt_is_written_whatever_happens(
    connected: Connect, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def script(request: Request) -> list[Step]:
        faults: list[Step] = [RequestFailed("x"), EngineDead("x"), ZeroDivisionError("x")]
        asked = len(engine.seen)
        return [faults[asked - 1]] if asked <= len(faults) else list(says("fine")(request))

    engine = ScriptedEngine(script)
    with connected(engine) as http, caplog.at_level(logging.DEBUG):
        answers = [complete(http, prompt=SECRET, stream=stream) for _ in range(4)]
        answers.append(chat(http, messages=[{"role": "user", "content": SECRET}], stream=stream))
        answers.append(complete(http, prompt=SECRET, stop=[SECRET, ""], stream=stream))
        answers.append(complete(http, prompt=SECRET, model=SECRET, stream=stream))
        answers.append(chat(http, messages=[{"role": SECRET, "content": SECRET}], stream=stream))
    assert [answer.status_code for answer in answers] == [500, 503, 500, 200, 200, 400, 404, 400]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 3
    assert SECRET not in caplog.text and "grandmother" not in caplog.text


def test_where_it_is_asked_for_each_request_is_one_line(
    connected: Connect, lines: list[str]
) -> None:
    engine = ScriptedEngine(says("fine"), max_model_len=10_000, num_blocks=1000)
    with connected(engine, enable_log_requests=True) as http:
        headers = {"X-Request-Id": "mine"}
        body = {"prompt": ["first\nprompt", "second"], "temperature": 0.5, "max_tokens": 3}
        http.post("/v1/completions", json=body, headers=headers)
        complete(http, prompt=[5, 6, 7], stream=True)
        chat(http)
        complete(http, n=0)
        complete(http, prompt="x" * 3000, stop=[SECRET])
    first, second, ids, chatted, refused_or_long = lines
    assert all("\n" not in line for line in lines)
    assert first.startswith("request mine (cmpl-") and "'first\\nprompt'" in first
    assert f"{len(TOKENIZER.encode('second'))} tokens: 'second'" in second
    assert "temperature=0.5" in second and "max_tokens=3" in second
    assert "top_p" not in second, "as usual"
    assert "3 tokens: [5, 6, 7]" in ids
    assert "user: Hello" in chatted
    assert len(refused_or_long) < MOST_CHARACTERS + 1500 and "(3002 characters)" in refused_or_long


def test_it_is_off_unless_asked_for(connected: Connect, lines: list[str]) -> None:
    with connected(ScriptedEngine(says("fine"))) as http:
        complete(http, prompt=SECRET)
    assert not lines
