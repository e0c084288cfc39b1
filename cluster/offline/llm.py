"""The offline API: a model in this process (or over Ray), prompts in, finished answers out.

    llm = LLM()                                    # the embedded model
    for output in llm.generate(["Hello"], SamplingParams(max_tokens=32)):
        print(output.outputs[0].text)

Names and shapes are vLLM's. The engine runs on a thread of its own; the methods may be called from
any thread.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm  # type: ignore[import-untyped]

from octavo.cluster.api.job import Job, plan_job
from octavo.cluster.api.prompts import Prompt
from octavo.cluster.api.settings import RequestLimits
from octavo.cluster.api.validate import Window, within_vocabulary
from octavo.cluster.checkpoints.model_source import resolve_model
from octavo.cluster.checkpoints.revision import model_revision
from octavo.cluster.client import EngineClient
from octavo.cluster.config import EngineConfig
from octavo.cluster.offline.answers import all_of, answer
from octavo.cluster.offline.background import Background
from octavo.cluster.offline.executors import open_engine
from octavo.cluster.offline.outputs import RequestOutput
from octavo.cluster.planning import resolve_device
from octavo.cluster.stats import EngineStats
from octavo.cluster.text.bad_words import spellings
from octavo.cluster.text.grammars import Grammars
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.config import Allocation, PreemptionMode
from octavo.scheduler.errors import EngineDead, InvalidRequest
from octavo.scheduler.sampling import SamplingParams, mix_seed
from octavo.workers.adapter_files import read_adapters
from octavo.workers.config import resolve_dtype, served_length
from octavo.workers.lora_modules import located, paths
from octavo.workers.read_model import read_model

PromptLike = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's `{"prompt": text}` and `{"prompt_token_ids": ids}`."""

Conversation = Sequence[dict[str, Any]]
"""Messages, each with `role` and `content`."""

Sampling = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, one for each, or the defaults."""

STEP_TOKENS = 2048  # more than a server takes at once: here no one waits for a first token


class LLM:
    """`model` is a directory or a hub name; None is the embedded model, SmolLM2-135M-Instruct.

    `seed` decides the answers to requests that bring none: the same calls in the same order give
    the same tokens. `lora_modules` are adapters, as `--lora-modules` takes them, and `journal` is
    the file of `--journal`. Raises `InvalidRequest`, a `ValueError`, naming the setting that is
    wrong.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        model_impl: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        block_size: int = 16,
        num_gpu_blocks_override: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float = 0.9,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = STEP_TOKENS,
        enable_prefix_caching: bool = True,
        swap_space: float | None = None,
        preemption_mode: PreemptionMode = "auto",
        watermark_low: float = 0.04,
        watermark_high: float = 0.08,
        allocation: Allocation = "paged",
        executor: str = "local",
        num_threads: int | None = None,
        enforce_eager: bool = False,
        cuda_graph_sizes: list[int] | None = None,
        enable_lora: bool = False,
        lora_modules: Sequence[str] = (),
        max_loras: int | None = None,
        max_lora_rank: int = 16,
        seed: int = 0,
        journal: str | Path | None = None,
    ) -> None:
        self.model_path, names = resolve_model(None if model is None else str(model), _say)
        self.tokenizer = Tokenizer.load(self.model_path)
        self._grammars = Grammars(self.tokenizer)
        modules = located(lora_modules)
        config = EngineConfig(
            model=str(self.model_path),
            served_model_names=names,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            quantization=quantization,
            model_impl=model_impl,
            device=resolve_device(device),
            tensor_parallel_size=tensor_parallel_size,
            max_model_len=max_model_len,
            block_size=block_size,
            num_gpu_blocks_override=num_gpu_blocks_override,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_queued_reqs=sys.maxsize,  # the caller's own list bounds the queue
            enable_prefix_caching=enable_prefix_caching,
            swap_space=swap_space,
            preemption_mode=preemption_mode,
            watermark_low=watermark_low,
            watermark_high=watermark_high,
            allocation=allocation,
            revision=model_revision(self.model_path, paths(modules)),
            num_threads=num_threads,
            enforce_eager=enforce_eager,
            cuda_graph_sizes=cuda_graph_sizes,
            enable_lora=enable_lora,
            lora_modules=modules,
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            journal=None if journal is None else os.path.abspath(journal),
        )
        checkpoint = read_model(self.model_path, model_impl)
        resolve_dtype(dtype, checkpoint.dtype, config.device)
        read_adapters(modules, checkpoint, max_lora_rank)
        self._adapters = config.adapters
        length = served_length(checkpoint, max_model_len)
        self._seed = seed
        self._numbers = itertools.count(1)
        background: Background[EngineClient] = Background()
        self._client = background.start(lambda: open_engine(config, length, executor))
        self._window = Window.of(self._client.stats())
        self._background = background
        self._end = weakref.finalize(self, background.stop)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: Sampling = None,
        *,
        use_tqdm: bool = True,
        lora_request: str | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of `prompts`, computed together. With `use_tqdm`, a terminal shows
        how many are done. `lora_request` is the name of the adapter that is to answer.

        Raises `InvalidRequest` before anything runs where a prompt or a parameter is wrong;
        `EngineDead` or `RequestFailed` for faults that are not the caller's.
        """
        items = [self._prompt(item) for item in _listed(prompts)]
        return self._run(items, sampling_params, use_tqdm, lora_request)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Sampling = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: str | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or several, by the model's chat template."""
        prompts = []
        for conversation in _conversations(messages):
            text = self.tokenizer.render_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=chat_template_kwargs,
            )
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            prompts.append(self._checked(Prompt(ids, text), "messages"))
        return self._run(prompts, sampling_params, use_tqdm, lora_request)

    def stats(self) -> EngineStats:
        """What the engine holds now and has measured since it started."""

        async def snapshot() -> EngineStats:
            (stats,) = self._client.stats()
            return stats

        return self._background.run(snapshot())

    def shutdown(self) -> None:
        """Ends the engine and frees its memory. May be called more than once; at the end of the
        program it happens by itself."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _run(
        self, prompts: Sequence[Prompt], sampling: Sampling, use_tqdm: bool, adapter: str | None
    ) -> list[RequestOutput]:
        if not self._end.alive:
            raise EngineDead("this LLM was shut down; make a new one")
        if adapter is not None and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise InvalidRequest(
                "lora_request", f"there is no adapter {adapter!r}; lora_modules has {known}"
            )
        each = _one_for_each(sampling, len(prompts))
        jobs = [
            self._job(prompt, one, adapter or "") for prompt, one in zip(prompts, each, strict=True)
        ]
        with tqdm(total=len(jobs), unit="prompt", disable=None if use_tqdm else True) as bar:

            async def one(job: Job) -> RequestOutput:
                output = await answer(self._client, self.tokenizer, job)
                bar.update()
                return output

            return self._background.run(all_of([one(job) for job in jobs]))

    def _job(self, prompt: Prompt, sampling: SamplingParams, adapter: str) -> Job:
        within_vocabulary("stop_token_ids", sampling.stop_token_ids, self.tokenizer.vocab_size)
        within_vocabulary("logit_bias", sampling.logit_bias, self.tokenizer.vocab_size)
        within_vocabulary(
            "allowed_token_ids", sampling.allowed_token_ids, self.tokenizer.vocab_size
        )
        number = next(self._numbers)
        if sampling.grammar is not None:
            self._grammars.check_now("grammar", sampling.grammar)
        ignored = sampling.ignore_eos and sampling.grammar is None
        ends = () if ignored else self.tokenizer.eos_ids
        complete = sampling.replace(
            seed=mix_seed(self._seed, number) if sampling.seed is None else sampling.seed,
            stop_token_ids=tuple(dict.fromkeys(sampling.stop_token_ids + ends)),
            bad_token_ids=sampling.bad_token_ids + spellings(sampling.bad_words, self.tokenizer),
        )
        return plan_job(
            str(number),
            [prompt],
            complete,
            self._window,
            RequestLimits(),
            default_max_tokens=None,
            blame=("prompts", "max_tokens"),
            priority=0,
            salt="",
            adapter=adapter,
        )

    def _prompt(self, item: PromptLike) -> Prompt:
        if isinstance(item, Mapping):
            if item.keys() != {"prompt"} and item.keys() != {"prompt_token_ids"}:
                raise InvalidRequest(
                    "prompts",
                    "a prompt given as a mapping has the one key prompt or prompt_token_ids, "
                    f"got {sorted(item)}",
                )
            return self._prompt(next(iter(item.values())))
        if isinstance(item, str):
            return self._checked(Prompt(self.tokenizer.encode(item), item), "prompts")
        return self._checked(Prompt(list(item), None), "prompts")

    def _checked(self, prompt: Prompt, param: str) -> Prompt:
        if not prompt.tokens:
            raise InvalidRequest(param, f"{param} must not hold an empty one")
        if not all(isinstance(token, int) for token in prompt.tokens):
            raise InvalidRequest(param, f"{param} must be texts or lists of token ids")
        ends = min(prompt.tokens), max(prompt.tokens)
        within_vocabulary(param, ends, self.tokenizer.vocab_size)
        return prompt


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _listed(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items: list[Any] = list(prompts)
    return [items] if items and all(isinstance(item, int) for item in items) else items


def _conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    items: list[Any] = list(messages)
    if not items:
        raise InvalidRequest("messages", "messages must not be empty")
    return [items] if isinstance(items[0], Mapping) else items


def _one_for_each(sampling: Sampling, prompts: int) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * prompts
    if len(sampling) != prompts:
        raise InvalidRequest(
            "sampling_params",
            f"sampling_params must be one for all or one for each of the {prompts} prompts, "
            f"got {len(sampling)}",
        )
    return list(sampling)
