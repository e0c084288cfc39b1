"""`octavo bench throughput` and `octavo bench latency`: an engine in this process, no server."""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from octavo.cluster.bench.datasets.synthetic import random_requests
from octavo.cluster.bench.prompts import Prompts, ordinary_tokens
from octavo.cluster.bench.report import check_folder
from octavo.cluster.bench.workload import requests_of
from octavo.cluster.offline.llm import LLM, PromptLike
from octavo.cluster.offline.outputs import RequestOutput
from octavo.cluster.traces.request import Request
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.sampling import SamplingParams

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)


def bench_throughput(arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Answers all requests at once, and prints and saves what that took."""
    _check(arguments)
    with _engine(arguments) as llm:
        requests = requests_of(arguments, llm.tokenizer, chat=False)
        prompts = _prompts(llm, requests, arguments.seed)
        sampling = [_sampling(each.output_len, arguments.n) for each in requests]
        if arguments.num_warmups:
            warm = arguments.num_warmups
            llm.generate(prompts[:warm], sampling[:warm], use_tqdm=False)
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling)
        seconds = time.perf_counter() - begin
        stats = llm.stats()
    into, out = _tokens(outputs)
    print(
        f"Throughput: {len(outputs) / seconds:.2f} requests/s, "
        f"{(into + out) / seconds:.2f} total tokens/s, {out / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {into}")
    print(f"Total num output tokens:  {out}")
    peak = stats.measured.peak_blocks_used / max(1, stats.capacity.usable_blocks)
    preemptions = stats.measured.preemptions
    print(f"Peak KV cache usage:  {peak:.1%}, {preemptions} preemption(s)", flush=True)
    result = {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": into + out,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (into + out) / seconds,
        "output_tokens_per_second": out / seconds,
        "peak_kv_cache_usage": peak,
        "num_preemptions": preemptions,
    }
    _save(arguments.output_json, result, say)
    return True


def bench_latency(arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Answers the same batch again and again, and prints and saves how long each took."""
    for name in ("batch_size", "num_iters"):
        if getattr(arguments, name) < 1:
            raise InvalidRequest(name, f"{name} must be at least 1, got {getattr(arguments, name)}")
    _check(arguments)
    requests = list(
        random_requests(
            arguments.batch_size, arguments.input_len, arguments.output_len, seed=arguments.seed
        )
    )
    with _engine(arguments) as llm:
        prompts = _prompts(llm, requests, arguments.seed)
        sampling = _sampling(arguments.output_len, arguments.n)

        def once() -> float:
            begin = time.perf_counter()
            llm.generate(prompts, sampling, use_tqdm=False)
            return time.perf_counter() - begin

        for _ in tqdm(range(arguments.num_iters_warmup), desc="Warmup iterations", disable=None):
            once()
        counted = tqdm(range(arguments.num_iters), desc="Bench iterations", disable=None)
        latencies = [once() for _ in counted]
    mean = float(np.mean(latencies))
    percentiles = {each: float(np.percentile(latencies, each)) for each in LATENCY_PERCENTILES}
    print(f"Avg latency: {mean} seconds")
    for each, value in percentiles.items():
        print(f"{each}% percentile latency: {value} seconds", flush=True)
    result = {"avg_latency": mean, "latencies": latencies, "percentiles": percentiles}
    _save(arguments.output_json, result, say)
    return True


def _check(arguments: argparse.Namespace) -> None:
    if arguments.n < 1:
        raise InvalidRequest("n", f"n must be at least 1, got {arguments.n}")
    if arguments.output_json is not None:
        check_folder(Path(arguments.output_json).parent, "output_json")


def _engine(arguments: argparse.Namespace) -> LLM:
    """From those flags that `LLM` has under the same names, as far as they are given."""
    known = inspect.signature(LLM).parameters
    given = {name: value for name, value in vars(arguments).items() if name in known}
    return LLM(**{name: value for name, value in given.items() if value is not None})


def _prompts(llm: LLM, requests: Sequence[Request], seed: int) -> list[PromptLike]:
    made = Prompts(ordinary_tokens(llm.tokenizer), seed)
    return [each.text if each.text is not None else made.tokens(each) for each in requests]


def _sampling(output_len: int, n: int) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.0, max_tokens=output_len, ignore_eos=True)


def _tokens(outputs: Sequence[RequestOutput]) -> tuple[int, int]:
    """Of prompts and of answers."""
    into = sum(len(each.prompt_token_ids) for each in outputs)
    out = sum(len(answer.token_ids) for each in outputs for answer in each.outputs)
    return into, out


def _save(path: str | None, result: dict[str, Any], say: Callable[[str], None]) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(result, indent=4))
    except OSError as error:
        raise InvalidRequest(
            "output_json", f"cannot write {path}: {error.strerror}; choose another --output-json"
        ) from None
    say(f"saved {path}")
