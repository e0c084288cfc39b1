"""A row that begins with tokens of its own making is sampled like one that has been there all the
time: same draws, same penalties, same log-probabilities."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker

BLOCK_SIZE = 4
NUM_BLOCKS = 128
LENGTH = 16
PROMPT = [7, 31, 200, 31, 90, 12, 7, 55, 311]
GRAMMAR = Grammar("regex", "([a-z]{3}[0-9]){20}")
CONFIG = SchedulerConfig(max_model_len=128, block_size=BLOCK_SIZE, max_num_batched_tokens=32)


def answers(directory: Path, item: Request) -> dict[int, list[TokenEvent]]:
    """The events of each sample, by an engine of its own."""
    worker = Worker(WorkerConfig(str(directory), block_size=BLOCK_SIZE, num_threads=1))
    worker.load()
    worker.allocate(NUM_BLOCKS)
    scheduler = Scheduler(CONFIG, Capacity(NUM_BLOCKS, BLOCK_SIZE))
    scheduler.add(item, 0.0)
    found: dict[int, list[TokenEvent]] = {}
    while (plan := scheduler.schedule(0.0)) is not None:
        for event in scheduler.update(decode_result(worker.execute(encode(plan)) or b""), 0.0):
            found.setdefault(event.index, []).append(event)
    return found


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.tokens]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0, "repetition_penalty": 1.4},
        {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": 1.0},
        {"temperature": 0.9, "top_p": 0.8, "frequency_penalty": 1.5, "repetition_penalty": 0.8},
        {"temperature": 1.0, "top_k": 30, "min_p": 0.01, "logit_bias": {31: 3.0}},
        {"temperature": 0, "min_tokens": 12, "logit_bias": {9: 100}, "stop_token_ids": (9,)},
        {"temperature": 1.0, "grammar": GRAMMAR, "stop_token_ids": (2,)},
    ],
    ids=["greedy", "seeded", "repetition", "presence", "nucleus", "top-k", "min-tokens", "grammar"],
)
def test_the_rest_of_an_answer_is_the_same(tiny_model, sampling):
    directory = tiny_model("qwen3", kv_heads=2)
    params = SamplingParams(n=2, seed=5, max_tokens=LENGTH, logprobs=2, **sampling)
    item = Request("r", PROMPT, params)
    whole = answers(directory, item)
    for first, second in ((1, 1), (3, 4), (11, 9)):
        given = [tokens(whole[0])[:first], tokens(whole[1])[:second]]
        rest = answers(directory, msgspec.structs.replace(item, resumed=given))
        for index, length in enumerate((first, second)):
            assert_same(rest[index], whole[index][length:])


def test_the_rest_is_the_same_where_other_samples_have_ended(tiny_model):
    directory = tiny_model("llama")
    item = Request("r", PROMPT, SamplingParams(n=3, seed=5, max_tokens=LENGTH, logprobs=0))
    whole = answers(directory, item)
    given = [None, tokens(whole[1])[:6], None]
    rest = answers(directory, msgspec.structs.replace(item, resumed=given))
    assert list(rest) == [1]
    assert_same(rest[1], whole[1][6:])


def assert_same(found: list[TokenEvent], expected: list[TokenEvent]) -> None:
    assert [event.tokens for event in found] == [event.tokens for event in expected]
    ends = [(event.finish, event.stop_token) for event in found]
    assert ends == [(event.finish, event.stop_token) for event in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs and other.logprobs
        assert one.logprobs[0].logprob == pytest.approx(other.logprobs[0].logprob, abs=1e-4)
        assert one.logprobs[0].rank == other.logprobs[0].rank
        assert [each for each, _ in one.logprobs[0].top] == [
            each for each, _ in other.logprobs[0].top
        ]
