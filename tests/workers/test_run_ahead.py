"""Steps that are begun before the one before has ended, and decode steps that are played."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.errors import OutOfStep
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.plan import StepPlan, decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import PENDING
from octavo.workers.graph_maker import GraphMaker
from octavo.workers.sampler import Sampler
from tests.workers.again import Again, give_graphs
from tests.workers.plans import GREEDY, fork_plans, generation_plans, run_plans, tokens_by_row
from tests.workers.test_generation import make_worker, random_prompts

PROMPTS = random_prompts(5, 16, 23, 70, 9)
RANDOM = SamplingParams(temperature=0.9, seed=5)
MIXED = [
    [GREEDY] * 5,
    [GREEDY, RANDOM, GREEDY, SamplingParams(temperature=1.4, seed=6), RANDOM],
    [RANDOM, SamplingParams(temperature=0.8, top_p=0.9, seed=1), GREEDY, GREEDY, GREEDY],
    [GREEDY, SamplingParams(temperature=0, repetition_penalty=1.5), RANDOM, GREEDY, GREEDY],
    [SamplingParams(temperature=0, logprobs=2, prompt_logprobs=0), RANDOM, GREEDY, GREEDY, GREEDY],
    [SamplingParams(temperature=0, min_tokens=9, stop_token_ids=(7, 8)), *[GREEDY] * 4],
    [GREEDY, SamplingParams(temperature=0, grammar=Grammar("regex", "[a-z ]{99}")), *[RANDOM] * 3],
]
NAMES = ["greedy", "random", "filtered", "penalty", "logprobs", "ends", "grammar"]


def run_begun(worker, plans):
    """Results when each step is begun before the one before is finished."""
    answers, aloft = [], []
    for plan in plans:
        aloft.append(worker.begin(encode(plan)))
        if len(aloft) == 2:
            answers.append(worker.finish(aloft.pop(0)))
    answers += [worker.finish(flight) for flight in aloft]
    return [decode_result(answer) for answer in answers]


def ahead(directory, **settings):
    worker = make_worker(directory, **settings)
    worker.runs_ahead = True
    return worker


def without_times(results):
    return [
        (r.step, r.tokens, r.logprobs, r.prompt_logprobs, r.errors, r.candidates) for r in results
    ]


@pytest.mark.parametrize("sampling", MIXED, ids=NAMES)
@pytest.mark.parametrize("chunk", [1000, 7])
def test_a_step_begun_early_gives_what_it_gives_in_its_turn(tiny_model, sampling, chunk):
    plans = generation_plans(PROMPTS, 12, sampling=sampling, chunk=chunk)
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    assert without_times(run_begun(ahead(tiny_model("llama")), plans)) == without_times(expected)


def test_rows_may_fork_from_one_whose_token_is_on_its_way(tiny_model):
    plans = fork_plans(PROMPTS[1], RANDOM, [7, 8], 10, fork_at=3)
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    worker = ahead(tiny_model("llama"))
    assert without_times(run_begun(worker, plans)) == without_times(expected)
    streams = tokens_by_row(plans, expected)
    for number, row in worker._mirror.rows.items():
        said = row.tokens[len(PROMPTS[1]) :]
        assert said == [*streams[0][: 0 if number == 0 else 3], *streams[number]], number


def test_tokens_are_pending_until_their_step_has_ended(tiny_model):
    worker = ahead(tiny_model("llama"))
    plans = generation_plans(PROMPTS[:1], 3)
    first = worker.begin(encode(plans[0]))
    second = worker.begin(encode(plans[1]))
    row = worker._mirror.rows[0]
    assert row.tokens[5:] == [PENDING, PENDING]
    (token,) = decode_result(worker.finish(first)).tokens
    assert row.tokens[5:] == [token, PENDING]
    assert first.done() and second.done()
    (other,) = decode_result(worker.finish(second)).tokens
    assert row.tokens[5:] == [token, other]


def test_a_missed_plan_leaves_what_is_under_way(tiny_model):
    worker = ahead(tiny_model("llama"))
    plans = generation_plans(PROMPTS[:1], 4)
    flight = worker.begin(encode(plans[0]))
    with pytest.raises(OutOfStep, match="expected plan 1, got plan 2"):
        worker.begin(encode(plans[2]))
    results = [decode_result(worker.finish(flight)), *run_begun(worker, plans[1:])]
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    assert without_times(results) == without_times(expected)


def test_a_row_that_is_gone_gets_its_token_all_the_same(tiny_model):
    worker = ahead(tiny_model("llama"))
    plans = generation_plans(PROMPTS[:2], 1)
    flight = worker.begin(encode(plans[0]))
    assert worker.finish(worker.begin(encode(StepPlan(1, [], drop=[0, 1])))) is not None
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    assert decode_result(worker.finish(flight)).tokens == expected[0].tokens


def test_faults_are_found_where_nobody_looked(tiny_model):
    """Rows of NaN, of infinities and of nothing at all, greedy and random, among good ones."""
    worker = make_worker(tiny_model("llama"))
    rows = {}
    for number in range(8):
        worker.execute(
            encode(
                StepPlan(
                    number,
                    [],
                    add=generation_plans(
                        [PROMPTS[0]], 1, sampling=[GREEDY if number < 4 else RANDOM]
                    )[0].add,
                    drop=[0] if number else [],
                )
            )
        )
        rows[number] = worker._mirror.rows[0]
    logits = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    logits[1::4] = float("nan")
    logits[2::4, 5] = float("inf")
    logits[3::4] = float("-inf")
    sampler = Sampler(worker.kernels)
    ids, unfit = sampler.launch(logits.clone(), range(8), rows)
    assert unfit.tolist() == [False, True, True, True] * 2
    assert all(0 <= token < 512 for token in ids.tolist())
    alone = sampler.sample(logits[::4].clone(), [0, 4], rows)
    assert ids[::4].tolist() == alone.tokens


@pytest.mark.parametrize("family, kv_heads", [("llama", 4), ("qwen3", 2)])
@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_steps_that_are_played_give_what_steps_that_are_run_give(
    tiny_model, family, kv_heads, kernels
):
    directory = tiny_model(family, kv_heads=kv_heads)
    plans = generation_plans(PROMPTS, 12, sampling=MIXED[1], chunk=30)
    expected = run_plans(make_worker(directory, kernels=kernels), plans)
    worker = ahead(directory, kernels=kernels)
    give_graphs(worker, (1, 2, 4, 8))
    before, ticks = Again.replays, worker.progress.ticks
    found = run_begun(worker, plans)
    assert tokens_by_row(plans, found) == tokens_by_row(plans, expected)
    decoding = sum(all(work.count == 1 for work in plan.work) and bool(plan.work) for plan in plans)
    assert Again.replays - before == decoding > 5
    assert worker.progress.ticks > ticks


def test_steps_beyond_the_largest_size_are_run(tiny_model):
    plans = generation_plans(PROMPTS, 6)
    worker = ahead(tiny_model("llama"))
    give_graphs(worker, (1, 2))
    before = Again.replays
    found = run_begun(worker, plans)
    assert Again.replays == before
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    assert without_times(found) == without_times(expected)


def test_the_sizes_of_a_gpu_are_those_that_were_asked_for(tiny_model, monkeypatch):
    monkeypatch.setattr("octavo.workers.graph_maker.CudaCapture", lambda device: Again)

    def maker(device="cuda", **settings):
        worker = make_worker(tiny_model("llama"), **settings)
        parts = (worker.config, worker.max_model_len, worker.layout, worker._model)
        return worker, GraphMaker(*parts, torch.device(device))

    assert maker(max_num_seqs=9)[1].sizes == (1, 2, 4, 8, 9)
    assert maker(max_num_seqs=99, max_num_batched_tokens=3)[1].sizes == (1, 2, 3)
    assert maker(cuda_graph_sizes=[3, 5])[1].sizes == (3, 5)
    assert maker(enforce_eager=True)[1].sizes == ()
    assert maker(kernels="torch")[1].sizes == ()
    worker, on_cpu = maker("cpu")
    assert on_cpu.sizes == () and on_cpu.make(worker._cache) is None
    on_cpu.sizes = (2, 4)
    trial = on_cpu.trial()
    trial.record(4)
    trial.record(2)
    trial.discard()
    worker._graphs = on_cpu.make(worker._cache)
    plans = generation_plans(PROMPTS[:3], 6)
    before = Again.replays
    found = run_plans(worker, plans)
    assert Again.replays > before
    expected = run_plans(make_worker(tiny_model("llama")), plans)
    assert without_times(found) == without_times(expected)
