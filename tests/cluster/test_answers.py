"""Offline outputs from an engine's events: samples, ranks and beams, against scripted engines."""

from __future__ import annotations

import asyncio

import pytest

from octavo.cluster.api.job import plan_job
from octavo.cluster.api.prompts import Prompt
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.api.validate import Window
from octavo.cluster.offline.answers import answer
from octavo.cluster.offline.outputs import RequestOutput
from octavo.scheduler.errors import RequestFailed
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.scripted import HANG, TOKENIZER, Script, ScriptedEngine, Step, events, says


def run(script: Script, sampling: SamplingParams) -> tuple[RequestOutput, ScriptedEngine]:
    engine = ScriptedEngine(script)
    job = plan_job(
        "7",
        [Prompt([5, 6], None)],
        sampling,
        Window(100, 1000),
        RequestLimits(),
        default_max_tokens=None,
        blame=("prompts", "max_tokens"),
        priority=0,
        salt="",
    )
    return asyncio.run(answer(engine, TOKENIZER, job)), engine


def test_the_samples_of_one_request_become_its_outputs() -> None:
    sampling = SamplingParams(n=3, logprobs=1, max_tokens=50)
    output, engine = run(says("Hi"), sampling)
    assert [request.sampling.n for request in engine.seen] == [3]
    tokens = [*TOKENIZER.encode("Hi"), 1]
    assert [each.index for each in output.outputs] == [0, 1, 2]
    for each in output.outputs:
        assert (each.text, each.token_ids, each.finish_reason) == ("Hi", tokens, "stop")
        assert each.logprobs is not None and len(each.logprobs) == len(tokens)
        assert each.cumulative_logprob == -sum(range(1, len(tokens) + 1))
        assert each.score is None
    assert output.num_cached_tokens == 4


def test_a_stop_string_cuts_its_sample_alone() -> None:
    texts = ["one END two", "another one"]

    def script(request: Request) -> list[Step]:
        played: list[Step] = [
            TokenEvent(request.id, [token], index=index)
            for index, text in enumerate(texts)
            for token in TOKENIZER.encode(text)
        ]
        return [*played, TokenEvent(request.id, [], Finish.LENGTH, index=1)]

    output, engine = run(script, SamplingParams(n=2, stop=("END",), max_tokens=50))
    cut, whole = output.outputs
    assert (cut.text, cut.finish_reason) == ("one ", "stop")
    assert TOKENIZER.decode(cut.token_ids) == "one END"
    assert (whole.text, whole.finish_reason) == ("another one", "length")
    assert engine.aborted == [("7-0", 0)]


def test_best_of_keeps_the_likeliest_and_their_sums() -> None:
    means = [-9.0, -1.0, -5.0]

    def script(request: Request) -> list[Step]:
        assert (request.sampling.n, request.sampling.logprobs) == (3, 0)
        return [
            TokenEvent(
                request.id,
                [40 + index],
                Finish.LENGTH,
                logprobs=[Logprob(40 + index, mean, 1)],
                index=index,
            )
            for index, mean in enumerate(means)
        ]

    output, _ = run(script, SamplingParams(n=2, best_of=3))
    assert [each.token_ids for each in output.outputs] == [[41], [42]]
    assert [each.cumulative_logprob for each in output.outputs] == [-1.0, -5.0]
    assert [each.logprobs for each in output.outputs] == [None, None]


def test_beams_come_ranked_with_their_scores() -> None:
    def script(request: Request) -> list[Step]:
        assert (request.sampling.beam_width, request.sampling.n) == (4, 2)
        return [
            TokenEvent(
                request.id,
                [40 + rank, 50],
                Finish.LENGTH,
                index=rank,
                score=-1.5 - rank,
                cumulative_logprob=-3.0 - rank,
            )
            for rank in range(2)
        ]

    output, _ = run(script, SamplingParams(beam_width=4, n=2, best_of=4))
    assert [each.token_ids for each in output.outputs] == [[40, 50], [41, 50]]
    assert [each.score for each in output.outputs] == [-1.5, -2.5]
    assert [each.cumulative_logprob for each in output.outputs] == [-3.0, -4.0]


def test_a_fault_leaves_nothing_running() -> None:
    def script(request: Request) -> list[Step]:
        return [*events([40, 41])(request)[:1], RequestFailed("boom"), HANG]

    with pytest.raises(RequestFailed, match="boom"):
        run(script, SamplingParams(n=2))
