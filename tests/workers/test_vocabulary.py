"""What grammars know of a model's tokens, on one tokenizer of each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.grammar import Grammar
from octavo.workers.grammar import compile_grammar
from octavo.workers.vocabulary import Vocabulary
from tests.cluster.text_models import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    byte_fallback,
    byte_level,
    word_piece,
)

FAMILIES = {"bytes": (byte_level, BYTE_LEVEL), "spaces": (byte_fallback, BYTE_FALLBACK)}


def allowed(vocabulary: Vocabulary, grammar: Grammar, given: list[int] | None = None) -> set[int]:
    matcher = compile_grammar(grammar, vocabulary)
    assert matcher.consume_tokens(given or [])
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    return {token for token in range(vocabulary.end + 1) if bits >> token & 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_the_bytes_that_the_front_shows(family: str) -> None:
    make, front = FAMILIES[family]
    vocabulary = Vocabulary(make(), front.vocab_size)
    texts = [token for token in range(front.vocab_size) if token not in front.special_ids]
    for token in texts:
        raw = front.bytes_of(token)
        if raw != b"\xff":  # the library's own mark, and in no text
            assert vocabulary.tokenizer.decode_bytes([token]) == raw
    may_come = allowed(vocabulary, Grammar("regex", r"(?s:.*)"))
    assert not may_come & front.special_ids
    whole = {token for token in texts if not front.token_text(token).startswith("bytes:")}

    assert may_come >= whole and vocabulary.end in may_come


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_forced_is_cut_as_usual_and_always_fits(family: str) -> None:
    make, front = FAMILIES[family]
    vocabulary = Vocabulary(make(), front.vocab_size)
    text = "Hello world"
    grammar, given = Grammar("lark", f'start: "{text}"'), list[int]()
    while True:
        following = allowed(vocabulary, grammar, given)
        if following == {vocabulary.end}:
            break
        given.append(following.pop())
    assert b"".join(front.bytes_of(token) for token in given) == text.encode()
    if family == "bytes":
        assert given == front.encode(text)


def test_more_or_fewer_ids_than_the_model_has_logits_for() -> None:
    backend = byte_level()
    for size in (300, 1000):
        vocabulary = Vocabulary(backend, size)
        may_come = allowed(vocabulary, Grammar("regex", "[a-z ]+"))
        assert max(may_come) < min(size, backend.get_vocab_size())


def test_a_directory_says_what_is_special(tmp_path: Path) -> None:
    backend = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    name = backend.id_to_token(200)
    settings = {"bos_token": {"content": name}, "added_tokens_decoder": {"201": {"special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    vocabulary = Vocabulary.of_directory(str(tmp_path), 420)
    may_come = allowed(vocabulary, Grammar("regex", r"(?s:.*)"))
    plain = allowed(Vocabulary(backend, 420), Grammar("regex", r"(?s:.*)"))
    assert plain - may_come == {200, 201} & plain
    assert backend.truncation is None


def test_tokens_that_depend_on_their_neighbours_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="neighbours"):
        Vocabulary(word_piece(), 9)


def test_a_refusal_is_one_line() -> None:
    vocabulary = Vocabulary(byte_level(), 420)
    with pytest.raises(InvalidRequest) as refused:
        compile_grammar(Grammar("lark", "start: ("), vocabulary)
    assert "\n" not in refused.value.message and len(refused.value.message) <= 300
