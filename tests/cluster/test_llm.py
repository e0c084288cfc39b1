"""The offline API on a tiny real model, beside transformers on the same weights."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.cluster.journal.replay import replay
from octavo.cluster.offline.llm import LLM, PromptLike, Sampling
from octavo.scheduler.errors import EngineDead, InvalidRequest, NeverFits
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.sampling import SamplingParams, mix_seed
from tests.conftest import TinyModel

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[7, 8, 9], [100, 101, 102, 103, 104], [50] * 20]


@pytest.fixture(scope="module")
def model_path(tiny_model: TinyModel) -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(model_path, dtype="float32", num_gpu_blocks_override=128, num_threads=1) as made:
        yield made


def test_greedy_answers_are_those_of_transformers(llm: LLM, model_path: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    outputs = llm.generate(PROMPTS, GREEDY)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            min_new_tokens=12,
            max_new_tokens=12,
        )
        (answer,) = output.outputs
        assert answer.token_ids == expected[0, len(prompt) :].tolist()
        assert (answer.finish_reason, answer.index) == ("length", 0)
        assert (output.prompt, output.prompt_token_ids) == (None, prompt)
        assert output.finished


def test_text_comes_in_and_goes_out(llm: LLM) -> None:
    text = "An octavo is"
    (output,) = llm.generate(text, GREEDY)
    assert output.prompt == text
    assert output.prompt_token_ids == llm.tokenizer.encode(text)
    assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)


def test_every_spelling_of_a_prompt_means_the_same(llm: LLM) -> None:
    ids = llm.tokenizer.encode("a page")
    spellings: list[PromptLike] = ["a page", ids, {"prompt": "a page"}, {"prompt_token_ids": ids}]
    alone = [llm.generate(each, GREEDY)[0] for each in spellings]
    together = llm.generate(spellings, GREEDY)
    assert len({tuple(one.outputs[0].token_ids) for one in alone + together}) == 1


def test_a_conversation_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "fold"}]
    (alone,) = llm.chat(messages, GREEDY)
    assert alone.prompt == "<|im_start|>user\nfold<|im_end|>\n<|im_start|>assistant\n"
    several = llm.chat([messages, messages], GREEDY)
    assert [one.outputs[0].token_ids for one in several] == [alone.outputs[0].token_ids] * 2


def test_a_stop_string_ends_text_and_tokens(llm: LLM) -> None:
    (free,) = llm.generate([PROMPTS[0]], GREEDY)
    whole = free.outputs[0].text
    stop = whole[3:5]
    (cut,) = llm.generate([PROMPTS[0]], GREEDY.replace(stop=(stop,)))
    (answer,) = cut.outputs
    assert answer.finish_reason == "stop"
    assert answer.text == whole[: whole.index(stop)]
    assert answer.token_ids == free.outputs[0].token_ids[: len(answer.token_ids)]
    assert len(answer.token_ids) < 12


def test_an_end_token_is_counted_but_not_shown(llm: LLM) -> None:
    (free,) = llm.generate([PROMPTS[0]], GREEDY)
    tokens = free.outputs[0].token_ids
    end = next(token for token in tokens[2:] if token not in tokens[:2])
    (cut,) = llm.generate([PROMPTS[0]], GREEDY.replace(stop_token_ids=(end,)))
    (answer,) = cut.outputs
    assert answer.token_ids == tokens[: tokens.index(end) + 1]
    assert answer.text == llm.tokenizer.decode(answer.token_ids[:-1])
    assert answer.finish_reason == "stop"


def test_several_answers_have_seeds_of_their_own(llm: LLM) -> None:
    sampling = SamplingParams(n=3, max_tokens=8, seed=5, ignore_eos=True)
    (output,) = llm.generate([PROMPTS[0]], sampling)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    for index, answer in enumerate(output.outputs):
        alone = sampling.replace(n=1, seed=mix_seed(5, index))
        (single,) = llm.generate([PROMPTS[0]], alone)
        assert single.outputs[0].token_ids == answer.token_ids
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3


def test_best_of_keeps_the_likeliest(llm: LLM) -> None:
    wide = SamplingParams(n=4, max_tokens=6, seed=3, logprobs=0, ignore_eos=True)
    (all_four,) = llm.generate([PROMPTS[1]], wide)
    (best,) = llm.generate([PROMPTS[1]], wide.replace(n=2, best_of=4))
    likeliest = sorted(all_four.outputs, key=lambda one: -(one.cumulative_logprob or 0))[:2]
    assert [one.token_ids for one in best.outputs] == [one.token_ids for one in likeliest]
    assert [one.index for one in best.outputs] == [0, 1]


def test_best_of_tells_the_sums_that_ranked(llm: LLM) -> None:
    sampling = SamplingParams(n=2, best_of=4, max_tokens=6, seed=3, ignore_eos=True)
    (output,) = llm.generate([PROMPTS[1]], sampling)
    first, second = (one.cumulative_logprob for one in output.outputs)
    assert first is not None and second is not None and first >= second
    assert [one.logprobs for one in output.outputs] == [None, None]


def test_beams_come_best_first_with_their_scores(llm: LLM) -> None:
    sampling = SamplingParams(beam_width=4, n=3, max_tokens=8, length_penalty=2.0, ignore_eos=True)
    (output,) = llm.generate([PROMPTS[0]], sampling)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert len({tuple(one.token_ids) for one in output.outputs}) == 3
    scores = []
    for one in output.outputs:
        assert one.cumulative_logprob is not None and one.score is not None
        assert one.score == pytest.approx(one.cumulative_logprob / len(one.token_ids) ** 2.0)
        assert one.text == llm.tokenizer.decode(one.token_ids)
        scores.append(one.score)
    assert scores == sorted(scores, reverse=True)
    (again,) = llm.generate([PROMPTS[0]], sampling.replace(temperature=0.3, seed=9))
    assert again.outputs == output.outputs, "beam search draws nothing"


def test_logprobs_are_those_of_the_tokens(llm: LLM) -> None:
    sampling = GREEDY.replace(logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate([PROMPTS[1]], sampling)
    (answer,) = output.outputs
    assert answer.logprobs is not None and answer.cumulative_logprob is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert entry[token].rank == 1 and len(entry) == 2
        assert entry[token].logprob == max(each.logprob for each in entry.values())
    total = sum(
        entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    )
    assert answer.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for token, known in zip(PROMPTS[1][1:], output.prompt_logprobs[1:], strict=True):
        assert known is not None and token in known


def test_without_logprobs_none_are_made(llm: LLM) -> None:
    (output,) = llm.generate([PROMPTS[0]], GREEDY)
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None


def test_a_repeated_prompt_is_found_in_the_cache(llm: LLM) -> None:
    prompt = list(itertools.islice(itertools.cycle(range(200, 240)), 70))
    (first,) = llm.generate([prompt], GREEDY)
    (second,) = llm.generate([prompt], GREEDY)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 64)
    assert first.outputs == second.outputs


def test_one_sampling_for_each_prompt(llm: LLM) -> None:
    lengths = [3, 1, 2]
    outputs = llm.generate(PROMPTS, [GREEDY.replace(max_tokens=length) for length in lengths])
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_no_limit_means_all_that_fit(model_path: Path) -> None:
    with LLM(model_path, max_model_len=40, num_gpu_blocks_override=16, num_threads=1) as short:
        (output,) = short.generate([PROMPTS[0]], GREEDY.replace(max_tokens=None))
        assert len(output.outputs[0].token_ids) == 40 - len(PROMPTS[0])


def test_its_journal_can_be_replayed(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with LLM(model_path, num_gpu_blocks_override=16, num_threads=1, journal=path) as recorded:
        recorded.generate([[5, 6, 7]], SamplingParams(max_tokens=9, ignore_eos=True))
    (outcome,) = replay(path)
    assert (outcome.plans, outcome.requests, outcome.difference) == (9, 1, None)


def test_the_seed_of_the_llm_repeats_a_run(model_path: Path) -> None:
    def run(seed: int) -> list[list[int]]:
        with LLM(model_path, num_gpu_blocks_override=64, num_threads=1, seed=seed) as one:
            outputs = one.generate(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
        return [output.outputs[0].token_ids for output in outputs]

    first = run(1)
    assert first == run(1)
    assert first != run(2)


def test_threads_may_share_it(llm: LLM) -> None:
    found: dict[int, list[int]] = {}

    def call(number: int) -> None:
        found[number] = llm.generate([PROMPTS[number]], GREEDY)[0].outputs[0].token_ids

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    assert [found[number] for number in range(3)] == together


def test_nothing_in_gives_nothing_out(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompts", "sampling", "param"),
    [
        ("", GREEDY, "prompts"),
        ([[1, 2], []], GREEDY, "prompts"),
        ([[1, 100_000]], GREEDY, "prompts"),
        ([[1, -1]], GREEDY, "prompts"),
        ([[1, 2.5]], GREEDY, "prompts"),
        ([{"text": "x"}], GREEDY, "prompts"),
        ([[1]], [GREEDY, GREEDY], "sampling_params"),
        ([[1]], GREEDY.replace(logit_bias={100_000: 1.0}), "logit_bias"),
        ([[1]], GREEDY.replace(stop_token_ids=(100_000,)), "stop_token_ids"),
        ([[1]], GREEDY.replace(n=128), "n"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    llm: LLM, prompts: Any, sampling: Sampling, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(prompts, sampling)
    assert caught.value.param == param
    assert isinstance(caught.value, ValueError)


def test_too_long_a_request_is_refused_with_the_numbers(llm: LLM) -> None:
    with pytest.raises(NeverFits, match="510"):
        llm.generate([PROMPTS[0]], GREEDY.replace(max_tokens=510))


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"executor": "carrier pigeon"}, "executor"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"block_size": 12}, "block_size"),
        ({"max_model_len": 10_000_000}, "max_model_len"),
        ({"dtype": "float7"}, "dtype"),
        ({"quantization": "int3"}, "quantization"),
        ({"swap_space": -1}, "swap_space"),
        ({"preemption_mode": "never"}, "preemption_mode"),
        ({"watermark_low": 0.5}, "watermark_low"),
        ({"watermark_high": 2}, "watermark_high"),
        ({"allocation": "some"}, "allocation"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(model_path: Path, settings: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LLM(model_path, **settings)
    assert caught.value.param == param


def test_after_its_end_it_says_so(model_path: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(model_path, num_gpu_blocks_override=16, num_threads=1)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDead, match="shut down"):
        llm.generate([PROMPTS[0]], GREEDY)
    assert set(threading.enumerate()) <= before


def test_a_grammar_holds_offline_too(llm: LLM) -> None:
    grammar = Grammar("regex", "[0-9]{4}-[a-f]{3}")
    for more in ({"temperature": 0}, {"n": 3, "seed": 1}, {"ignore_eos": True}):
        sampling = SamplingParams(max_tokens=40, grammar=grammar, **more)
        for answer in llm.generate("An octavo", sampling, use_tqdm=False)[0].outputs:
            assert re.fullmatch("[0-9]{4}-[a-f]{3}", answer.text)
            assert answer.finish_reason == "stop"
    framed = SamplingParams(grammar=Grammar("regex", "[0-9]{4}", "start: /[xyz]{9}:/ @answer"))
    (answer,) = llm.generate("An octavo", framed, use_tqdm=False)[0].outputs
    assert re.fullmatch("[xyz]{9}:[0-9]{4}", answer.text)
    with pytest.raises(InvalidRequest, match="grammar cannot be followed"):
        llm.generate("An octavo", SamplingParams(grammar=Grammar("regex", "(")))
