"""Greedy generation through `Worker.execute`, from hand-written plans, against transformers."""

from __future__ import annotations

import functools

import pytest
import torch

from octavo.scheduler.errors import OutOfStep
from octavo.scheduler.plan import Add, StepPlan, Work, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker
from tests.tiny import VOCABULARY
from tests.workers.plans import (
    BLOCK_SIZE,
    GREEDY,
    NUM_BLOCKS,
    generation_plans,
    run_plans,
    tokens_by_row,
)

NEW_TOKENS = 24


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


PROMPTS = random_prompts(5, 16, 23, 70)


def make_worker(directory, **settings):
    worker = Worker(WorkerConfig(str(directory), block_size=BLOCK_SIZE, **settings))
    worker.load()
    worker.allocate(NUM_BLOCKS)
    return worker


@pytest.fixture(scope="module")
def expected(tiny_model):
    """Greedy continuations of `PROMPTS` by transformers, each alone."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    @functools.cache
    def generate(family, kv_heads):
        directory = tiny_model(family, kv_heads=kv_heads)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        model.generation_config = GenerationConfig(  # no end token: all go to the full length
            max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        return [
            model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64)
            )[0, len(prompt) :].tolist()
            for prompt in PROMPTS
        ]

    return generate


@pytest.mark.parametrize("chunk", [1000, 9, 1])
@pytest.mark.parametrize(("family", "kv_heads"), [("llama", 4), ("qwen3", 2), ("llama3", 4)])
def test_whole_and_chunked_prompts(tiny_model, expected, family, kv_heads, chunk):
    worker = make_worker(tiny_model(family, kv_heads=kv_heads))
    plans = generation_plans(PROMPTS, NEW_TOKENS, chunk=chunk)
    found = tokens_by_row(plans, run_plans(worker, plans))
    assert list(found.values()) == expected(family, kv_heads)


def test_a_row_can_start_behind_a_prefix_that_is_in_the_cache(tiny_model, expected):
    worker = make_worker(tiny_model("llama"))
    prompt, answer = PROMPTS[3], expected("llama", 4)[3]
    full = list(range(40, 57))  # 68 tokens
    fill = StepPlan(0, [Work(5, 0, 68, False)], add=[Add(5, prompt, 70, full, 0, SamplingParams())])
    run_plans(worker, [fill, StepPlan(1, [], drop=[5])])
    plans = generation_plans(
        [prompt, prompt], NEW_TOKENS, first_step=2, tables=[full, full[:3]], computed=[68, 12]
    )
    assert tokens_by_row(plans, run_plans(worker, plans)) == {0: answer, 1: answer}


def test_a_reset_forgets_rows_but_not_the_cache(tiny_model, expected):
    worker = make_worker(tiny_model("llama"))
    prompt, answer = PROMPTS[2], expected("llama", 4)[2]
    plans = generation_plans([prompt], NEW_TOKENS)
    results = run_plans(worker, plans[:10])
    tokens = prompt + [token for result in results for token in result.tokens]
    assert tokens == prompt + answer[:10]
    table = [block for plan in plans[:10] for grow in plan.grow for block in grow.blocks]
    table.append(next(block for block in range(1, NUM_BLOCKS) if block not in table))
    add = Add(9, tokens, len(prompt), table, len(tokens) - 1, SamplingParams(temperature=0))
    with pytest.raises(OutOfStep):
        worker.execute(encode(StepPlan(77, [Work(9, len(tokens) - 1, 1, True)], add=[add])))
    again = StepPlan(77, [Work(9, len(tokens) - 1, 1, True)], add=[add], reset=True)
    assert run_plans(worker, [again])[0].tokens == answer[10:11]


def test_a_missed_plan_leaves_everything_as_it_was(tiny_model, expected):
    worker = make_worker(tiny_model("llama"))
    plans = generation_plans(PROMPTS[:1], NEW_TOKENS)
    results = run_plans(worker, plans[:5])
    ticks = worker.progress.ticks
    with pytest.raises(OutOfStep, match="expected plan 5, got plan 6"):
        worker.execute(encode(plans[6]))
    assert worker.progress.ticks == ticks > 0
    results += run_plans(worker, plans[5:])
    assert tokens_by_row(plans, results)[0] == expected("llama", 4)[0]


def test_results_carry_times_and_rows_that_do_not_sample_give_no_token(tiny_model):
    worker = make_worker(tiny_model("llama"))
    plans = generation_plans(PROMPTS[3:], 1, chunk=40)
    results = run_plans(worker, plans)
    assert [len(result.tokens) for result in results] == [0, 1, 0]
    assert [result.step for result in results] == [0, 1, 2]
    assert results[0].compute_seconds > 0


def test_prompt_logprobs_equal_those_of_transformers(tiny_model):
    from transformers import AutoModelForCausalLM

    directory = tiny_model("qwen2")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    prompt = random_prompts(150)[0]
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    worker = make_worker(directory)
    asking = SamplingParams(temperature=0, prompt_logprobs=2, logprobs=0)
    plans = generation_plans(
        [PROMPTS[0], prompt], 2, chunk=141, sampling=[SamplingParams(temperature=0), asking]
    )
    results = run_plans(worker, plans)
    assert [list(result.prompt_logprobs) for result in results] == [[1], [1], [], []]
    entries = [entry for result in results[:2] for entry in result.prompt_logprobs[1]]
    assert [entry.token for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        row = expected[position]
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=1e-4)
        assert entry.rank == (row > row[entry.token]).sum() + 1
        assert [token for token, _ in entry.top] == row.topk(2).indices.tolist()
    assert results[1].logprobs[0] is None
    assert results[1].logprobs[1].logprob == pytest.approx(expected[-1].max().item(), abs=1e-4)


def test_faulty_weights_end_their_request_alone(tmp_path, tiny_model, expected):
    import shutil

    from safetensors.torch import load_file, save_file

    directory = tmp_path / "faulty"
    shutil.copytree(tiny_model("llama", tie=False), directory)
    tensors = load_file(directory / "model.safetensors")
    good, bad = PROMPTS[0], [7, 8, 400]
    assert 400 not in good
    tensors["model.embed_tokens.weight"][400] = float("nan")
    save_file(tensors, directory / "model.safetensors")
    healthy = run_plans(make_worker(tiny_model("llama", tie=False)), generation_plans([good], 1))
    token = healthy[0].tokens[0]
    worker = make_worker(directory)
    together = generation_plans([good, bad, good], 1)
    result, _ = run_plans(worker, together)
    assert result.tokens == [token, 0, token]
    assert list(result.errors) == [1]
    assert "NaN" in result.errors[1]
    # The faulty row's block is handed on, and its new owner fills only part of it.
    (used,) = (grow.blocks for grow in together[0].grow if grow.row == 1)
    again = Add(0, good, len(good), [250, *used], 0, GREEDY)
    result, _ = run_plans(
        worker, [StepPlan(2, [Work(0, 0, 5, True)], add=[again]), StepPlan(3, [], drop=[0])]
    )
    assert (result.tokens, result.errors) == ([token], {})


def test_bfloat16_runs_and_stays_close(tiny_model):
    directory = tiny_model("llama")
    asking = [SamplingParams(temperature=0, prompt_logprobs=0)]
    plans = generation_plans(PROMPTS[3:], 1, sampling=asking)
    exact, rough = (
        run_plans(make_worker(directory, dtype=dtype), plans)[0].prompt_logprobs[0]
        for dtype in ("float32", "bfloat16")
    )
    differences = [abs(a.logprob - b.logprob) for a, b in zip(exact, rough, strict=True)]
    assert 1e-4 < max(differences) < 1
