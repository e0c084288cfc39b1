"""Streams of token ids become the text that decoding them at once gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cluster.text.tokens import Tokenizer
from tests.cluster import text_models
from tests.cluster.text_models import BYTE_FALLBACK, BYTE_LEVEL, WORD_PIECE

TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from("ab é你好👩‍👧́😀\u200d\ufe0f ▁\n"),
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(1, 5), max_size=60)


def pieces(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`ids` in runs of the given lengths, the rest one by one."""
    result, start = [], 0
    for length in [*cuts, *[1] * len(ids)]:
        if start < len(ids):
            result.append(ids[start : start + length])
            start += length
    return result


def streamed(
    tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int], prompt: Sequence[int] = ()
) -> tuple[str, list[str]]:
    stream = tokenizer.detokenizer(prompt)
    deltas = [stream.feed(run) for run in pieces(ids, cuts)]
    return "".join(deltas) + stream.flush(), deltas


@settings(deadline=None)
@given(TEXTS, CUTS)
def test_byte_level_text_survives_any_chunking(text: str, cuts: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text)
    joined, deltas = streamed(BYTE_LEVEL, ids, cuts)
    assert joined == text == BYTE_LEVEL.decode(ids) == "".join(deltas)
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@settings(deadline=None)
@given(st.lists(st.integers(0, 430), max_size=60), CUTS)
def test_byte_level_ids_at_random_equal_the_librarys_decoding(
    ids: list[int], cuts: list[int]
) -> None:
    """Most such sequences are broken UTF-8; some ids are outside the vocabulary."""
    joined, _ = streamed(BYTE_LEVEL, ids, cuts)
    assert joined == BYTE_LEVEL.decode(ids)
    assert joined == text_models.byte_level().decode(ids, skip_special_tokens=True)


@settings(deadline=None)
@given(TEXTS, CUTS)
def test_byte_fallback_text_survives_any_chunking(text: str, cuts: list[int]) -> None:
    ids = BYTE_FALLBACK.encode(text)
    joined, deltas = streamed(BYTE_FALLBACK, ids, cuts)
    assert joined == BYTE_FALLBACK.decode(ids)
    assert joined == text_models.byte_fallback().decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@settings(deadline=None)
@given(TEXTS.filter(bool), TEXTS, CUTS)
def test_a_continuation_is_what_the_whole_has_more_than_the_prompt(
    before: str, after: str, cuts: list[int]
) -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        prompt, ids = tokenizer.encode(before), tokenizer.encode(after)
        joined, _ = streamed(tokenizer, ids, cuts, prompt)
        assert tokenizer.decode(prompt) + joined == tokenizer.decode(prompt + ids)


@settings(deadline=None)
@given(TEXTS)
def test_at_most_three_bytes_are_held_back(text: str) -> None:
    stream, shown, raw = BYTE_LEVEL.detokenizer(), "", b""
    for token in BYTE_LEVEL.encode(text):
        shown += stream.feed((token,))
        raw += BYTE_LEVEL.bytes_of(token)
        assert raw.startswith(shown.encode())
        assert len(raw) - len(shown.encode()) <= 3


def test_a_leading_space_is_kept_after_a_prompt_and_dropped_at_the_start() -> None:
    world = text_models.byte_fallback().token_to_id("▁world")
    assert world is not None
    assert BYTE_FALLBACK.token_text(world) == " world"
    assert BYTE_FALLBACK.decode([world, world]) == "world world"
    assert streamed(BYTE_FALLBACK, [world], [], prompt=[world])[0] == " world"
    begin = 1  # `<s>` has no text, so the answer is still the start of the text
    assert streamed(BYTE_FALLBACK, [world], [], prompt=[begin])[0] == "world"


def test_good_characters_beside_broken_bytes_are_kept() -> None:
    ids = [3 + byte for byte in "你".encode() + b"\xe5"]
    joined, deltas = streamed(BYTE_FALLBACK, ids, [])
    assert deltas == ["", "", "你", ""]
    assert joined == "你\ufffd"


def test_a_character_cut_off_at_the_end_is_one_replacement() -> None:
    ids = BYTE_LEVEL.encode("a😀")[:-1]
    assert streamed(BYTE_LEVEL, ids, [])[0] == "a\ufffd"


def test_special_tokens_show_only_when_asked() -> None:
    ids = [0, *BYTE_LEVEL.encode("Hi"), 1]
    assert BYTE_LEVEL.decode(ids) == "Hi"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<s>Hi</s>"


def test_an_added_token_outside_the_byte_alphabet_is_literal() -> None:
    ids = BYTE_LEVEL.encode("x<tool call>y")
    assert BYTE_LEVEL.decode(ids) == "x<tool call>y"


def test_a_tokenizer_that_needs_context() -> None:
    ids = WORD_PIECE.encode("the quick foxes jumped over")
    assert streamed(WORD_PIECE, ids, [])[1] == [
        "the",
        " quick",
        " fox",
        "es",
        " jump",
        "ed",
        " over",
    ]
    assert WORD_PIECE.decode(ids) == text_models.word_piece().decode(ids)
    assert streamed(WORD_PIECE, ids[1:], [], prompt=ids[:1])[0] == " quick foxes jumped over"


def test_each_token_is_looked_at_once() -> None:
    looked: list[int] = []

    class Counting(Tokenizer):
        def bytes_of(self, token: int) -> bytes:
            looked.append(token)
            return super().bytes_of(token)

    ids = BYTE_LEVEL.encode("Hello 你好 world " * 50)
    streamed(Counting(text_models.byte_level()), ids, [])
    assert looked == ids


@pytest.mark.parametrize("token", [431, 10**6])
def test_an_id_outside_the_vocabulary_has_no_text(token: int) -> None:
    assert BYTE_LEVEL.bytes_of(token) == b""
