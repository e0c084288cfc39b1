"""The engine on the device: greedy answers against the reference kernels, graphs, swaps.

Two ways to compute in a 16-bit type differ in their last bits, and where two tokens are almost as
likely they may choose differently. So an answer is checked by what the reference thinks of it: each
token must be nearly as likely, given those before it, as the likeliest.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu_check.models import SMALL, TINY, write_model
from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting
from octavo.scheduler.checks import check
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker

NEARLY = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.1}  # nats from the likeliest token
Prompts = Sequence[Sequence[int]]


class Engine:
    """Scheduler and worker in this process, with as many plans in flight as a server has."""

    def __init__(self, config: WorkerConfig, **scheduling: Any) -> None:
        self.worker = Worker(config)
        self.worker.load()
        self.capacity = self.worker.allocate(self.worker.measure())
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=self.worker.max_model_len,
                block_size=config.block_size,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                **scheduling,
            ),
            self.capacity,
        )
        self.steps = 0
        self.timeline: list[tuple[int, float]] = []  # rows that decode, and when the step had ended

    def answer(self, prompts: Prompts, sampling: Sequence[SamplingParams]) -> list[list[int]]:
        """The tokens of each prompt's answer."""
        answers: dict[str, list[int]] = {}
        for number, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
            name = f"{self.steps}-{number}"
            answers[name] = []
            self.scheduler.add(Request(name, list(prompt), params), time.monotonic())
        aloft: deque[Any] = deque()
        depth = 2 if self.worker.runs_ahead else 1
        while self.scheduler.live_requests or aloft:
            while len(aloft) < depth and not (aloft and self.scheduler.awaits_result):
                plan = self.scheduler.schedule(time.monotonic())
                if plan is None:
                    break
                aloft.append(self.worker.begin(encode(plan)))
            flight = aloft.popleft()
            raw = self.worker.finish(flight)
            assert raw is not None
            self.steps += 1
            counts = [work.count for work in flight.plan.work]
            rows = len(counts) if set(counts) == {1} else 0
            self.timeline.append((rows, time.perf_counter()))
            for event in self.scheduler.update(decode_result(raw), time.monotonic()):
                if event.error is not None:
                    raise RuntimeError(event.error)
                answers[event.request_id] += event.tokens
        return list(answers.values())


def greedy(length: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, seed=0)


def random_prompts(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


class Case:
    """One small model, some prompts of mixed lengths, and the reference's opinion."""

    def __init__(self, setting: Setting, family: str = "llama") -> None:
        sizes = TINY if setting.tiny else SMALL
        self.setting = setting
        self.model: Path = write_model(setting.folder, sizes, family, setting.dtype)
        lengths = [3, 40, 17] if setting.tiny else [1, 5, 16, 17, 64, 130, 300, 511, 700, 33, 2, 90]
        self.prompts = random_prompts(lengths, sizes["vocab_size"])
        self.length = 6 if setting.tiny else 48

    def config(self, **changes: Any) -> WorkerConfig:
        settings: dict[str, Any] = {
            "model": str(self.model),
            "dtype": self.setting.dtype,
            "device": self.setting.device.type,
            "kernels": self.setting.kernels,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            "kv_cache_memory_bytes": 64 * 2**20,
            "swap_space": 0,
        }
        return WorkerConfig(**settings | changes)

    def answers(self, **changes: Any) -> list[list[int]]:
        engine = Engine(self.config(**changes))
        return engine.answer(self.prompts, [greedy(self.length)] * len(self.prompts))

    def judge(self, report: Report, name: str, answers: list[list[int]]) -> None:
        """Checks answers against the reference kernels on the same device."""
        reference = Engine(self.config(kernels="reference", enforce_eager=True))
        asking = msgspec.structs.replace(greedy(1), prompt_logprobs=1)
        worst, same, total = 0.0, 0, 0
        for prompt, answer in zip(self.prompts, answers, strict=True):
            events = reference_logprobs(reference, [*prompt, *answer], asking)
            for entry in events[len(prompt) :]:
                best = max(logprob for _, logprob in entry.top)
                worst = max(worst, best - entry.logprob)
                same += entry.rank == 1
                total += 1
        report.check(f"{name}: every token is (nearly) the likeliest", worst <= self.bound, worst)
        report.figures[f"{name}: nats below the likeliest, at most"] = round(worst, 4)
        report.figures[f"{name}: tokens that are the likeliest"] = f"{same} of {total}"

    @property
    def bound(self) -> float:
        return NEARLY[self.setting.dtype]


def reference_logprobs(engine: Engine, tokens: list[int], asking: SamplingParams) -> list[Any]:
    """One entry a token of `tokens`; None for the first."""
    now = time.monotonic
    engine.scheduler.add(Request(f"r{engine.steps}", tokens, asking), now())
    found: list[Any] = []
    while engine.scheduler.live_requests:
        plan = engine.scheduler.schedule(now())
        assert plan is not None
        raw = engine.worker.execute(encode(plan))
        assert raw is not None
        engine.steps += 1
        for event in engine.scheduler.update(decode_result(raw), now()):
            found = event.prompt_logprobs or found
    return found


def check_engine(setting: Setting, report: Report) -> None:
    """Greedy answers, batched and chunked, twice; random ones, twice; several model families."""
    for family, dtype in (("llama", setting.dtype), ("qwen3", setting.dtype), ("llama", "float32")):
        name = f"{family} {dtype}"
        case = Case(replace(setting, dtype=dtype), family)
        answers = case.answers()
        case.judge(report, name, answers)
        report.check(f"{name}: the same again", case.answers() == answers)
        whole, case.prompts = answers[-2:], case.prompts[-2:]
        agree = sum(a == b for a, b in zip(case.answers(), whole, strict=True))
        report.figures[f"{name}: answers alone that equal those in a batch"] = f"{agree} of 2"
    case = Case(setting)
    drawn = [
        SamplingParams(temperature=1.0, seed=number, max_tokens=8, ignore_eos=True)
        if number % 2
        else SamplingParams(temperature=0.8, top_p=0.9, seed=number, max_tokens=8, ignore_eos=True)
        for number in range(len(case.prompts))
    ]
    first, again = (Engine(case.config()).answer(case.prompts, drawn) for _ in range(2))
    report.check("random answers repeat by their seeds", first == again)


def check_graphs(setting: Setting, report: Report) -> None:
    """Decode steps that are played, against the same steps that are run."""
    case = Case(setting)
    eager = case.answers(enforce_eager=True)
    played = case.answers(enforce_eager=False)
    case.judge(report, "with graphs", played)
    same = sum(a == b for a, b in zip(eager, played, strict=True))
    report.figures["answers that graphs leave as they are"] = f"{same} of {len(eager)}"
    few = case.answers(cuda_graph_sizes=[3, 5])
    case.judge(report, "with graphs of 3 and 5 rows", few)
    engine = Engine(case.config())
    graphs = engine.worker._graphs
    report.figures["graphs"] = 0 if graphs is None else len(graphs.sizes)
    if setting.device.type == "cuda":
        report.check("graphs were recorded", graphs is not None)


def check_swaps(setting: Setting, report: Report) -> None:
    """More requests than the device has room for, so that blocks go to the host and come back."""
    case = Case(setting)
    case.prompts = [list(prompt) for prompt in case.prompts for _ in range(2)]
    for number, prompt in enumerate(case.prompts):
        prompt[0] = 3 + number  # no two share a block
    case.length = 20 if setting.tiny else 96
    longest = max(len(prompt) for prompt in case.prompts) + case.length
    blocks = 3 * -(-longest // 16) // (2 if setting.tiny else 1) + 1
    sampling = [greedy(case.length)] * len(case.prompts)
    small = replace(
        case.config(kv_cache_memory_bytes=None, swap_space=0.25), num_blocks_override=blocks
    )
    engine = Engine(small, preemption_mode="swap")
    answers = engine.answer(case.prompts, sampling)
    counters = engine.scheduler.counters
    case.judge(report, "under pressure", answers)
    undisturbed = Engine(case.config()).answer(case.prompts, sampling)
    same = sum(a == b for a, b in zip(answers, undisturbed, strict=True))
    report.figures["answers as undisturbed"] = f"{same} of {len(answers)}"
    report.check("something was swapped out and in", counters.swapped_in > 0)
    report.figures["counters"] = asdict(counters)
    check(engine.scheduler)
