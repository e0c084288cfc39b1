"""Masks against an oracle that knows the sentences, and against following from the start."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from octavo.scheduler.errors import STRAYED
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.mirror import Row
from octavo.scheduler.sampling import SamplingParams
from octavo.workers import matching
from octavo.workers.grammar import compile_grammar
from octavo.workers.masks import INTERNAL, Masks
from octavo.workers.vocabulary import Vocabulary
from tests.cluster.text_models import BYTE_LEVEL, byte_level

SIZE = BYTE_LEVEL.vocab_size
END = 1
SENTENCES = ["The quick brown fox", "The quick", "The dog", "naïve café", "你好世界", "Hello world"]
CHOICE = Grammar("lark", "start: CHOICE\nCHOICE: " + " | ".join(f'"{text}"' for text in SENTENCES))
COUNT = Grammar("regex", "[0-9]{3}")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_level(), SIZE, [0, 1])


@pytest.fixture
def masks(vocabulary: Vocabulary) -> Masks:
    return Masks(lambda: vocabulary)


def row(text: str = "", grammar: Grammar | None = CHOICE, **changes: Any) -> Row:
    given: dict[str, Any] = {"stop_token_ids": (END,), "grammar": grammar} | changes
    prompt = BYTE_LEVEL.encode("jumps over")
    return Row([*prompt, *BYTE_LEVEL.encode(text)], len(prompt), [], 0, SamplingParams(**given))


def follow(masks: Masks, *rows: Row) -> tuple[list[set[int]], dict[int, str]]:
    """The tokens that may come next in each row, and what went wrong."""
    numbers = range(5, 5 + len(rows))
    masks.begin(numbers, dict(zip(numbers, rows, strict=True)))
    logits = torch.zeros(len(rows), SIZE)
    errors = masks.forbid(logits)
    return [set(one.isfinite().nonzero()[:, 0].tolist()) for one in logits], errors


def said(one: Row) -> bytes:
    return b"".join(BYTE_LEVEL.bytes_of(token) for token in one.tokens[one.prompt_len :])


@pytest.mark.parametrize("seed", range(8))
def test_a_walk_says_a_sentence_whatever_is_drawn(masks: Masks, seed: int) -> None:
    draw = random.Random(seed)
    sentences = [text.encode() for text in SENTENCES]
    walker, free = row(), row(grammar=None)
    while True:
        (may_come, anything), errors = follow(masks, walker, free)
        assert errors == {} and may_come and len(anything) == SIZE
        so_far = said(walker)
        for token in may_come - {END}:
            text = so_far + BYTE_LEVEL.bytes_of(token)
            assert any(each.startswith(text) for each in sentences)
        assert (END in may_come) == (so_far in sentences)
        # One that has not been followed before may say the same next.
        again = Row(list(walker.tokens), walker.prompt_len, [], 0, walker.sampling)
        assert follow(Masks(masks._load), again)[0] == [may_come]
        token = draw.choice(sorted(may_come))
        walker.tokens.append(token)
        if token == END:
            break
    assert so_far in sentences
    assert follow(masks, walker)[0] == [{END}]  # a step that was planned before


def test_rows_may_be_born_again_fork_and_end(masks: Masks) -> None:
    parent = row("The")
    masks.begin([1], {1: parent})
    masks.forbid(torch.zeros(1, SIZE))
    parent.tokens += BYTE_LEVEL.encode(" quick")
    child = parent.fork(seed=3)
    stranger = row("Hello", seed=4)
    rows = {1: stranger, 2: child, 3: parent}
    logits = torch.zeros(3, SIZE, dtype=torch.bfloat16)
    masks.begin([3, 1, 2], rows)
    assert masks.forbid(logits) == {}
    first, second, third = [set(one.isfinite().nonzero()[:, 0].tolist()) for one in logits]
    assert first == third and END in first
    assert second == follow(masks, row("Hello"))[0][0] != first
    assert set(masks._stands) == {5}, "rows that are gone are forgotten"


@pytest.mark.parametrize(
    ("changes", "at_start", "at_end"),
    [
        ({}, False, True),
        ({"min_tokens": 9}, False, True),
        ({"ignore_eos": True}, False, True),
        ({"stop_token_ids": (END, BYTE_LEVEL.encode("7")[0])}, False, True),
        ({"stop_token_ids": (END, SIZE + 5, 99999999)}, False, True),
    ],
)
def test_the_end_of_a_grammar_ends_the_answer(
    masks: Masks, changes: dict[str, object], at_start: bool, at_end: bool
) -> None:
    (start, end), errors = follow(masks, row("", COUNT, **changes), row("123", COUNT, **changes))
    assert errors == {}
    assert (END in start, END in end) == (at_start, at_end)
    assert end <= {END, *BYTE_LEVEL.encode("7")}, "nothing but ends"


def test_an_answer_that_could_go_on_does_not_end_early(masks: Masks) -> None:
    some = Grammar("regex", "[0-9]+")
    two = row("12", some), row("12", some, min_tokens=3), row("12", some, ignore_eos=True)
    ends = [END in each for each in follow(masks, *two)[0]]
    assert ends == [True, False, False]
    seven = BYTE_LEVEL.encode("7")[0]
    stops = {"stop_token_ids": (END, seven), "min_tokens": 3}
    assert seven not in follow(masks, row("12", some, **stops))[0][0]
    only_seven = Grammar("regex", "127[0-9]*")
    assert seven in follow(masks, row("12", only_seven, **stops))[0][0], "there is nothing else"


def test_a_row_that_strays_does_not_disturb_the_others(masks: Masks) -> None:
    lost, bad = row("Goodbye"), row("", Grammar("regex", "("))
    fine, free = row("Hello"), row("", None)
    found, errors = follow(masks, lost, fine, bad, free)
    assert set(errors) == {0, 2} and all(each.startswith(STRAYED) for each in errors.values())
    assert [len(each) for each in found] == [SIZE, len(found[1]), SIZE, SIZE]
    assert found[1] == follow(masks, row("Hello"))[0][0]
    assert set(follow(masks, lost, fine)[1]) == {0}, "nor later"


def test_what_streams_taught_the_library_may_reach_its_bound(
    masks: Masks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matcher in error is replaced by one that has been through nothing else."""
    one = row("The")
    follow(masks, one)
    stand = masks._stands[5]
    assert stand.matcher is not None
    stand.matcher.consume_tokens(BYTE_LEVEL.encode("lazy"))
    assert stand.matcher.is_error()
    one.tokens += BYTE_LEVEL.encode(" dog")
    compiled: list[Grammar] = []

    def compile_and_note(grammar: Grammar, vocabulary: Vocabulary) -> Any:
        compiled.append(grammar)
        return compile_grammar(grammar, vocabulary)

    monkeypatch.setattr(matching, "compile_grammar", compile_and_note)
    numbers = {5: one}
    masks.begin([5], numbers)
    logits = torch.zeros(1, SIZE)
    assert masks.forbid(logits) == {} and compiled == [CHOICE]
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [END]


def test_a_model_without_a_vocabulary_fails_only_those_who_need_it() -> None:
    def load() -> Vocabulary:
        raise OSError("no such file")

    found, errors = follow(Masks(load), row("", None), row())
    assert errors == {1: INTERNAL} and len(found[0]) == SIZE


def test_few_grammars_are_kept(masks: Masks) -> None:
    for number in range(matching.KEPT_GRAMMARS + 10):
        follow(masks, row("", Grammar("regex", f"a{{{number + 1}}}")))
    assert masks._matching is not None
    assert len(masks._matching._compiled) == matching.KEPT_GRAMMARS


def test_several_threads_find_the_same(masks: Masks) -> None:
    several = Masks(masks._load, threads=3)
    rows = [row("The"), row("12", COUNT), row("Hello"), row("", COUNT), row("The quick")]
    assert follow(several, *rows) == follow(masks, *rows)
