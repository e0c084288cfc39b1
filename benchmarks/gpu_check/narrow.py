"""FP8 weights and an FP8 cache: how far they move what the engine says.

The text is fixed: greedy answers of the same model without them. A model of random weights makes
more of every change than one that has learnt, so the bounds are wide; what FP8 does to one that has
is measured by `benchmarks/quantized.py --fp8`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec

from benchmarks.gpu_check.engine import Case, Engine, greedy, reference_logprobs
from benchmarks.gpu_check.report import CannotRun, Report
from benchmarks.gpu_check.setting import Setting
from octavo.kernels.select import missing_for_fp8, select

LOSS = 0.1  # nats a token by which the text may become less likely
AGREED = 0.7  # of its tokens must still be the likeliest ones
FORMS = {"weights": {"quantization": "fp8"}, "cache": {"kv_cache_dtype": "fp8"}}


def check_fp8(setting: Setting, report: Report) -> None:
    if setting.device.type == "cpu":  # where plain torch alone has them
        setting = replace(setting, kernels="torch")
    if reason := missing_for_fp8(select(setting.device, setting.kernels), setting.device):
        raise CannotRun(f"FP8 {reason}")
    case = Case(setting)
    sampling = [greedy(case.length)] * len(case.prompts)
    plain = Engine(case.config())
    answers = plain.answer(case.prompts, sampling)
    texts = [[*prompt, *answer] for prompt, answer in zip(case.prompts, answers, strict=True)]
    before = _read(plain, texts, case.length)
    for name, changes in FORMS.items():
        engine = Engine(case.config(**changes))
        found = _read(engine, texts, case.length)
        again = engine.answer(case.prompts, sampling)
        loss = sum(a - b for (a, _), (b, _) in zip(before, found, strict=True)) / len(found)
        perplexities = [
            math.exp(-sum(score for score, _ in scores) / len(scores)) for scores in (before, found)
        ]
        report.check(f"FP8 {name}: the text is about as likely", loss <= LOSS, loss)
        alike = sum(rank == 1 for _, rank in found)
        agreed = alike / len(found)
        report.check(f"FP8 {name}: its tokens are mostly the likeliest", agreed >= AGREED, agreed)
        report.check(f"FP8 {name}: something is different", found != before)
        report.figures[f"FP8 {name}"] = {
            "perplexity of the text": round(perplexities[1], 4),
            "without FP8": round(perplexities[0], 4),
            "nats a token less likely": round(loss, 4),
            "likeliest tokens that are the same": f"{alike} of {len(found)}",
            "greedy tokens before the first difference": [
                _common(ours, theirs) for ours, theirs in zip(again, answers, strict=True)
            ],
        }


def _read(engine: Engine, texts: list[list[int]], length: int) -> list[tuple[float, int]]:
    """Log-probability and rank of the last `length` tokens of each text."""
    asking = msgspec.structs.replace(greedy(1), prompt_logprobs=1)
    entries: list[Any] = []
    for text in texts:
        entries += reference_logprobs(engine, text, asking)[-length:]
    return [(entry.logprob, entry.rank) for entry in entries]


def _common(ours: list[int], theirs: list[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((place for place, (a, b) in pairs if a != b), len(ours))
