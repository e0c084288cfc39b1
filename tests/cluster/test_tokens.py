"""Loading a model's tokenizer, its end tokens, and its chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest
from tests import tiny
from tests.cluster import text_models

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save_tokenizer(tmp_path)
    config = {"model_type": "llama", "vocab_size": 640, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_vocabulary_is_the_models_and_end_tokens_come_from_both(folder: Path) -> None:
    generation = {"eos_token_id": [0, 2]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == 640
    assert tokenizer.eos_ids == (0, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.decode(tokenizer.encode("An octavo, 你好")) == "An octavo, 你好"


def test_a_saved_truncation_does_not_cut_prompts(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(folder).encode("leaf " * 20)) > 4


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer can be read") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.param == "model"


def test_the_chat_template_gets_plain_strings(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    rendered = tokenizer.render_chat(MESSAGES)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render_chat(parts) == rendered
    assert tokenizer.encode(rendered, add_special_tokens=False)[0] == 1
    bare = tokenizer.render_chat(MESSAGES, add_generation_prompt=False)
    assert rendered.removeprefix(bare) == "<|im_start|>assistant\n"


def templated(template: str | None) -> Tokenizer:
    return Tokenizer(
        text_models.byte_level(), chat_template=template, special_tokens={"bos_token": "<s>"}
    )


def test_developer_is_system_unless_the_template_knows_it() -> None:
    roles = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{% endfor %}"
    developer = [{"role": "developer", "content": "x"}]
    assert templated(roles).render_chat(developer) == "<s>[system]"
    knows = roles + "{# developer #}"
    assert templated(knows).render_chat(developer) == "<s>[developer]"


def test_template_settings_reach_the_template_but_cannot_replace_the_messages() -> None:
    tokenizer = templated("{{ enable_thinking }}")
    assert tokenizer.render_chat(MESSAGES, template_kwargs={"enable_thinking": False}) == "False"
    for name in ("messages", "conversations", "tools", "chat_template", "add_generation_prompt"):
        with pytest.raises(InvalidRequest, match=name) as caught:
            tokenizer.render_chat(MESSAGES, template_kwargs={name: []})
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "refused"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{% for %}", "refused"),
    ],
)
def test_a_template_that_fails_is_the_conversations_fault(template: str | None, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        templated(template).render_chat(MESSAGES)
    assert caught.value.param == "messages"


def test_a_text_that_surely_is_too_long_is_known_without_tokenizing() -> None:
    tokenizer = text_models.BYTE_LEVEL
    longest = max(map(len, text_models.byte_level().get_vocab()))
    assert not tokenizer.surely_longer_than("x" * (10 * longest), 10)
    assert tokenizer.surely_longer_than("x" * (10 * longest + 1), 10)
    assert not text_models.WORD_PIECE.surely_longer_than("x" * 10**6, 1)  # one unknown token


def test_a_token_alone_shows_its_text_or_its_bytes() -> None:
    tokenizer = text_models.BYTE_LEVEL
    first = tokenizer.encode("😀")[0]
    assert tokenizer.token_text(tokenizer.encode("H")[0]) == "H"
    assert tokenizer.token_text(first).startswith("bytes:\\xf0")
    assert tokenizer.bytes_of(first)[0] == 0xF0
