"""The null worker: what it says depends on every move of memory."""

from __future__ import annotations

import pytest

from octavo.scheduler.config import Capacity
from octavo.scheduler.plan import (
    Add,
    Append,
    Fork,
    Grow,
    Replace,
    StepPlan,
    Work,
    decode_result,
    encode,
)
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.null import NullWorker, next_candidates, next_token

VOCAB = 64
GREEDY = SamplingParams(temperature=0)
PROMPT = [5, 6, 7, 8, 9, 10]


class Life:
    """A worker and the number of the next step."""

    def __init__(self, **settings):
        self.worker = NullWorker(4, vocab_size=VOCAB, num_blocks=16, num_host_blocks=6, **settings)
        self.capacity = self.worker.allocate(self.worker.measure())
        self.steps = 0

    def __call__(self, *work, **changes):
        plan = StepPlan(self.steps, [Work(*item) for item in work], **changes)
        self.steps += 1
        return decode_result(self.worker.execute(encode(plan)))


@pytest.fixture
def life():
    return Life()


def add(row, blocks, *, tokens=PROMPT, computed=0, sampling=GREEDY):
    return Add(row, tokens, len(PROMPT), blocks, computed, sampling)


def test_it_says_what_there_is_room_for(life):
    assert life.capacity == Capacity(16, 4, 6, 16)
    assert NullWorker(4).allocate(10) == Capacity(10, 4, 0, 16)


def test_a_row_goes_to_the_host_and_comes_back_elsewhere(life):
    first = next_token(PROMPT, VOCAB, None)
    result = life((0, 0, 6, True), add=[add(0, [1, 2])], store=[(1, 0)])
    assert (result.tokens, result.copied_blocks) == ([first], 1)
    assert result.copy_seconds > 0
    # In one step its last block leaves, and another row is given both of its blocks.
    result = life((1, 0, 6, True), drop=[0], swap_out=[(2, 3)], add=[add(1, [2, 1])])
    assert (result.tokens, result.copied_blocks) == ([first], 1)
    again = add(2, [8, 9], tokens=[*PROMPT, first], computed=6)
    result = life((2, 6, 1, True), add=[again], swap_in=[(0, 8), (3, 9)])
    assert result.tokens == [next_token([*PROMPT, first], VOCAB, None)]
    assert result.copied_blocks == 2


def test_a_block_that_was_not_brought_back_gives_a_wrong_token(life):
    life((0, 0, 6, True), add=[add(0, [1, 2])], store=[(1, 0)], drop=[])
    first = next_token(PROMPT, VOCAB, None)
    again = add(2, [8, 9], tokens=[*PROMPT, first], computed=6)
    result = life((2, 6, 1, True), add=[again], swap_in=[(0, 8), (3, 9)])  # 3 holds nothing
    assert result.tokens != [next_token([*PROMPT, first], VOCAB, None)]


def test_operations_go_in_the_agreed_order(life):
    life((0, 0, 4, False), add=[add(0, [1])], store=[(1, 5)])
    other = [20, 21, 22, 23]
    life((1, 0, 4, False), add=[Add(1, other, 4, [2], 0, GREEDY)])
    # 2 leaves before it is overwritten by 1's content, which is copied on, then out again.
    life(swap_out=[(2, 0)], swap_in=[(5, 2)], copy=[(2, 3), (3, 4)], store=[(4, 1)])
    life(swap_in=[(0, 6), (1, 7)])
    for row, (block, tokens) in enumerate(
        [(2, PROMPT[:4]), (3, PROMPT[:4]), (4, PROMPT[:4]), (6, other), (7, PROMPT[:4])], start=2
    ):
        known = [*tokens, 40]
        result = life((row, 4, 1, True), add=[Add(row, known, 4, [block, 9], 4, GREEDY)])
        assert result.tokens == [next_token(known, VOCAB, None)]


def test_forks_draw_from_the_same_context_and_part_by_copy_on_write(life):
    sampling = SamplingParams(temperature=1, seed=7)
    result = life(
        (0, 0, 6, True),
        (1, 6, 0, True),
        (2, 6, 0, True),
        add=[add(0, [1, 2], sampling=sampling)],
        fork=[Fork(1, 0, 8), Fork(2, 0, 9)],
    )
    streams = [[*PROMPT, next_token(PROMPT, VOCAB, seed)] for seed in (7, 8, 9)]
    assert [[*PROMPT, token] for token in result.tokens] == streams
    changes = {"copy": [(2, 5), (2, 6)], "replace": [Replace(1, 1, 5), Replace(2, 1, 6)]}
    for _ in range(5):
        length = len(streams[0]) - 1
        if length % 4 == 0:
            changes["grow"] = [Grow(row, [10 + row]) for row in range(3)]
        result = life(*((row, length, 1, True) for row in range(3)), **changes)
        expected = [
            next_token(tokens, VOCAB, seed) for tokens, seed in zip(streams, (7, 8, 9), strict=True)
        ]
        assert result.tokens == expected
        for tokens, token in zip(streams, expected, strict=True):
            tokens.append(token)
        changes = {}


def test_forks_without_copy_on_write_spoil_each_other(life):
    sampling = SamplingParams(temperature=1, seed=7)
    work = [(0, 0, 6, True), (1, 6, 0, True)]
    result = life(*work, add=[add(0, [1, 2], sampling=sampling)], fork=[Fork(1, 0, 8)])
    streams = [[*PROMPT, token] for token in result.tokens]
    assert streams[0] != streams[1]
    result = life((0, 6, 1, True), (1, 6, 1, True))
    assert result.tokens[0] != next_token(streams[0], VOCAB, 7)


def test_beams_get_candidates_and_append_what_they_are_told(life):
    beams = SamplingParams(beam_width=2, stop_token_ids=(3, 4))
    result = life(
        (0, 0, 6, True), (1, 0, 6, True), add=[add(0, [1, 2], sampling=beams), add(1, [3, 4])]
    )
    assert result.tokens == [next_token(PROMPT, VOCAB, None)]
    assert result.candidates == [next_candidates(PROMPT, VOCAB, 6)]
    (first, _), (second, _), *_ = result.candidates[0]
    result = life(
        (0, 6, 1, True),
        (2, 6, 1, True),
        fork=[Fork(2, 0, 0)],
        append=[Append(0, first), Append(2, second)],
        copy=[(2, 7)],
        replace=[Replace(2, 1, 7)],
    )
    assert result.tokens == []
    assert result.candidates == [
        next_candidates([*PROMPT, token], VOCAB, 6) for token in (first, second)
    ]


@pytest.mark.parametrize("vocabulary", [1, 2, 12, 64, 97])
def test_candidates_are_distinct_and_in_order(vocabulary):
    for last in range(50):
        found = next_candidates([1, last], vocabulary, 200)
        tokens, logprobs = zip(*found, strict=True)
        assert sorted(tokens) == list(range(vocabulary))
        assert sorted(set(logprobs), reverse=True) == list(logprobs)
        assert logprobs[0] < 0
        assert next_candidates([1, last], vocabulary, 5) == found[:5]
    assert len({next_candidates([1, last], 997, 1)[0][0] for last in range(50)}) > 40


def test_only_rank_0_answers():
    life = Life()
    other = NullWorker(4, vocab_size=VOCAB, rank=1)
    other.allocate(16)
    plan = StepPlan(0, [Work(0, 0, 6, True)], add=[add(0, [1, 2])])
    assert life.worker.execute(encode(plan)) is not None
    assert other.execute(encode(plan)) is None
