"""From flags to requests and the times at which they are sent."""

import json

import pytest

from octavo.cluster.bench.workload import requests_of, times_of
from octavo.cluster.cli import flags
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest
from tests.cluster import text_models

TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
TIMED = "\n".join(
    json.dumps({"timestamp": 1000 + 500 * n, "input_length": 5 + n, "output_length": 3})
    for n in range(4)
)
TALKS = [
    {"conversations": [{"value": "a question of some words"}, {"value": "and its long answer"}]},
    {"conversations": [{"value": "short"}]},
    {"conversations": [{"value": "another question of words"}, {"value": "and another answer"}]},
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(text_models.byte_level(), chat_template=TEMPLATE)


@pytest.fixture
def file(tmp_path):
    def write(content, name="data.jsonl"):
        path = tmp_path / name
        path.write_text(content)
        return ["--dataset-path", str(path)]

    return write


def parsed(*given):
    return flags.parse(["bench", "serve", *given])


def requests(*given, tokenizer=None, chat=False):
    return requests_of(parsed(*given), tokenizer, chat=chat)


def test_defaults_are_vllms():
    found = requests("--num-prompts", "3")
    assert [(each.prompt_len, each.output_len) for each in found] == [(1024, 128)] * 3
    assert times_of(parsed("--num-prompts", "3"), found) == [0, 0, 0]


def test_underscores_are_understood_in_flags():
    assert parsed("--num_prompts", "7").num_prompts == 7


def test_a_trace_keeps_its_times_unless_a_rate_is_given(file):
    given = ["--dataset-name", "mooncake", *file(TIMED)]
    found = requests(*given)
    assert times_of(parsed(*given), found) == [0, 0.5, 1.0, 1.5]
    assert times_of(parsed(*given, "--trace-speed", "5"), found) == pytest.approx(
        [0, 0.1, 0.2, 0.3]
    )
    assert times_of(parsed(*given, "--no-self-timed"), found) == [0, 0, 0, 0]
    rated = times_of(parsed(*given, "--request-rate", "2"), found)
    assert rated[-1] == pytest.approx(2) and rated != [0.5, 1, 1.5, 2]
    assert requests(*given, "--num-prompts", "2", "--output-len", "9")[1].output_len == 9
    with pytest.raises(InvalidRequest, match="trace_speed must be above 0"):
        times_of(parsed(*given, "--trace-speed", "0"), found)


def test_custom_prompts_get_the_models_template(file, tokenizer):
    given = ["--dataset-name", "custom", *file('{"prompt": "Hello"}'), "--num-prompts", "1"]
    (templated,) = requests(*given, tokenizer=tokenizer)
    assert templated.text == "<Hello>" and templated.output_len == 256
    assert templated.prompt_len == len(tokenizer.encode("<Hello>"))
    assert requests(*given, tokenizer=tokenizer, chat=True)[0].text == "Hello"
    assert requests(*given, "--skip-chat-template", tokenizer=tokenizer)[0].text == "Hello"
    (unknown,) = requests(*given)
    assert unknown.text == "Hello" and unknown.prompt_len == 0


def test_custom_answers_may_have_lengths_of_their_own(file):
    lines = '{"prompt": "a", "output_tokens": 7}\n{"prompt": "b"}'
    given = ["--dataset-name", "custom", *file(lines), "--custom-output-len", "-1"]
    with pytest.raises(InvalidRequest, match="line 2 has no output_tokens"):
        requests(*given)
    with pytest.raises(InvalidRequest, match="line 1: prompt must be a text, got 5"):
        requests("--dataset-name", "custom", *file('{"prompt": 5}'))


def test_too_few_are_sent_again_unless_that_is_unwanted(file):
    lines = "\n".join(json.dumps({"prompt": name}) for name in "abcdef")
    given = ["--dataset-name", "custom", *file(lines)]
    texts = [each.text for each in requests(*given, "--num-prompts", "14")]
    assert len(texts) == 14 and texts[:6] == texts[6:12] != list("abcdef")
    assert sorted(texts[:6]) == list("abcdef")
    kept = requests(*given, "--no-oversample", "--disable-shuffle")
    assert [each.text for each in kept] == list("abcdef")


def test_sharegpts_first_questions(file, tokenizer):
    given = ["--dataset-name", "sharegpt", *file(json.dumps(TALKS), "talks.json")]
    found = requests(*given, "--disable-shuffle", "--num-prompts", "2", tokenizer=tokenizer)
    assert [each.text for each in found] == [
        TALKS[each]["conversations"][0]["value"] for each in (0, 2)
    ]
    assert found[0].output_len == len(tokenizer.encode("and its long answer"))
    assert requests(*given, "--sharegpt-output-len", "9", tokenizer=tokenizer)[0].output_len == 9
    with pytest.raises(InvalidRequest, match="--tokenizer"):
        requests(*given)


def test_lengths_from_a_file_and_drawn(file):
    table = file("prompt,answer\n100,50\n160,8\n3000,8\n", "lengths.csv")
    found = requests("--dataset-name", "sharegpt", *table, "--num-prompts", "2")
    assert sorted((each.prompt_len, each.output_len) for each in found) == [(100, 50), (100, 50)]
    found = requests("--dataset-name", "lengths", *table, "--num-prompts", "3")
    assert sorted(each.prompt_len for each in found) == [100, 160, 3000]
    drawn = requests("--dataset-name", "sharegpt", "--num-prompts", "300")
    assert len(drawn) == 300
    assert drawn == requests("--dataset-name", "sharegpt", "--num-prompts", "300")
    assert drawn != requests("--dataset-name", "sharegpt", "--num-prompts", "300", "--seed", "1")


def test_ranges_for_prompts_and_answers():
    given = ["--random-range-ratio", '{"input": 0.5, "output": 0.0}', "--num-prompts", "50"]
    found = requests(*given)
    assert len({each.prompt_len for each in found}) > 20
    assert {each.output_len for each in found} == {128}


def test_a_file_without_a_request_is_refused(file):
    with pytest.raises(InvalidRequest, match="no request that can be sent"):
        requests("--dataset-name", "lengths", *file("a,b\n", "empty.csv"))
