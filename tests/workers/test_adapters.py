"""LoRA adapters in a step: greedy answers are those of the merged weights, whatever is batched."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.config import WorkerConfig
from tests.adapters import greedy, make_adapter, merge
from tests.workers.plans import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    fork_plans,
    generation_plans,
    run_plans,
    tokens_by_row,
)
from tests.workers.ranks import execute_plans, run_ranks
from tests.workers.test_generation import make_worker, random_prompts

NEW_TOKENS = 16
PROMPTS = random_prompts(5, 16, 23, 40)
ROWS = [  # a prompt's number, and an adapter's name
    *[(0, ""), (1, "all"), (2, "few"), (3, "all"), (3, ""), (3, "few"), (0, "all")],
]
FAMILIES = [("llama", 4), ("qwen3", 2), ("llama-bias", 4)]
SCORED = SamplingParams(temperature=0, logprobs=0)


class Case:
    """A tiny model, its two adapters, and what transformers says with each merged into it."""

    def __init__(self, model, folder):
        self.model = model
        all_of_it = make_adapter(folder / "all", model, seed=1)
        few = make_adapter(
            folder / "few",
            model,
            targets=("q_proj", "v_proj", "up_proj"),
            rank=3,
            ranks={"v_proj": 5},
            alpha=3,
            alpha_pattern={"up_proj": 6},
            use_rslora=True,
            seed=2,
        )
        self.modules = [f"all={all_of_it}", f"few={few}"]
        merged = {
            "": model,
            "all": merge(folder / "merged-all", model, all_of_it),
            "few": merge(folder / "merged-few", model, few),
        }
        self.answers = {name: greedy(path, PROMPTS, NEW_TOKENS) for name, path in merged.items()}

    def expected(self, rows=ROWS):
        return [self.answers[adapter][prompt] for prompt, adapter in rows]

    def worker(self, **settings):
        return make_worker(self.model, lora_modules=self.modules, **settings)


@pytest.fixture(scope="module")
def case(tiny_model, tmp_path_factory):
    made = {}

    def get(family="llama", kv_heads=4):
        if family not in made:
            model = tiny_model(family, kv_heads=kv_heads)
            made[family] = Case(model, tmp_path_factory.mktemp(family))
        return made[family]

    return get


def plans_of(rows, **options):
    return generation_plans(
        [PROMPTS[prompt] for prompt, _ in rows],
        NEW_TOKENS,
        adapters=[adapter for _, adapter in rows],
        **options,
    )


def in_order(plans, results):
    found = tokens_by_row(plans, results)
    return [found[row] for row in sorted(found)]


def answers_of(worker, rows, **options):
    plans = plans_of(rows, **options)
    return in_order(plans, run_plans(worker, plans))


@pytest.mark.parametrize("chunk", [1000, 9, 1])
@pytest.mark.parametrize(("family", "kv_heads"), FAMILIES)
def test_a_mixed_batch_gives_each_row_the_answer_of_its_merged_weights(
    case, family, kv_heads, chunk
):
    this = case(family, kv_heads)
    answers = this.answers
    assert all(len({str(answers[name][i]) for name in answers}) == 3 for i in range(len(PROMPTS)))
    assert answers_of(this.worker(), ROWS, chunk=chunk) == this.expected()


def test_steps_with_and_without_adapters_may_follow_each_other(case):
    """What is recorded for steps without must not serve those with, nor the other way round."""
    worker, this = case().worker(), case()
    step = 0
    for rows in ([(0, "")], [(0, "all")], [(0, "")], [(1, "few"), (1, "")], [(2, "few")]):
        plans = plans_of(rows, first_step=step)
        step += len(plans)
        found = tokens_by_row(plans, run_plans(worker, plans))
        assert list(found.values()) == this.expected(rows)


@pytest.mark.parametrize("kernels", ["torch", "reference"])
def test_every_implementation_of_the_kernels_serves_adapters(case, kernels):
    assert answers_of(case().worker(kernels=kernels), ROWS) == case().expected()


def test_a_row_is_the_same_to_the_last_bit_alone_and_among_others(case):
    kernels = case().worker().kernels
    if kernels.name != "native" or kernels._torch_above:
        pytest.skip("matrix products are torch's here")

    def logprobs(rows, row):
        plans = plans_of(rows, sampling=[SCORED] * len(rows))
        results = run_plans(case().worker(), plans[:NEW_TOKENS])
        return [result.logprobs[row].logprob for result in results]

    for number in (0, 1, 2):
        assert logprobs(ROWS, number) == logprobs(ROWS[number : number + 1], 0)


def test_forks_keep_the_adapter(case):
    plans = fork_plans(PROMPTS[1], SamplingParams(temperature=0), [1, 2], NEW_TOKENS)
    (born,) = plans[0].add
    plans[0] = replace(plans[0], add=[replace(born, adapter="few")])
    found = tokens_by_row(plans, run_plans(case().worker(), plans))
    assert list(found.values()) == [case().answers["few"][1]] * 3


@pytest.mark.parametrize(("family", "kv_heads"), FAMILIES[:2])
def test_two_ranks_give_what_one_gives(case, family, kv_heads):
    this = case(family, kv_heads)
    config = WorkerConfig(str(this.model), block_size=BLOCK_SIZE, lora_modules=this.modules)
    plans = plans_of(ROWS, chunk=10)
    encoded = [encode(plan) for plan in plans]
    (run,), (silent,) = run_ranks(2, execute_plans, [config], encoded, NUM_BLOCKS)
    assert not any(silent)
    found = in_order(plans, [decode_result(answer) for answer in run])
    assert found == this.expected()


def test_adapters_beside_int8_weights_and_in_bfloat16_move_answers_as_merged_ones_do(case):
    this = case()
    for settings in ({"quantization": "int8"}, {"dtype": "bfloat16"}):
        rows = [(3, ""), (3, "all")]
        scored = SamplingParams(temperature=0, prompt_logprobs=0)
        exact, rough = (
            run_plans(this.worker(**changes), plans_of(rows, sampling=[scored] * 2)[:1])[0]
            for changes in ({}, settings)
        )
        apart = [
            max(
                abs(a.logprob - b.logprob)
                for a, b in zip(exact.prompt_logprobs[i], other, strict=True)
            )
            for i, other in ((0, rough.prompt_logprobs[0]), (1, rough.prompt_logprobs[1]))
        ]
        between = max(
            abs(a.logprob - b.logprob)
            for a, b in zip(exact.prompt_logprobs[0], exact.prompt_logprobs[1], strict=True)
        )
        assert max(apart) < 1 < between


def test_the_largest_step_has_adapters(case):
    case().worker(max_num_seqs=3, max_num_batched_tokens=30).largest_step()
