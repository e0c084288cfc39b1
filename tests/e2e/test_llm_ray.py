"""The offline API over Ray actors: the same answers as in one process, and nothing left behind."""

from __future__ import annotations

from typing import Any

import psutil  # type: ignore[import-untyped]

from octavo.cluster.offline.llm import LLM
from octavo.scheduler.sampling import SamplingParams
from tests.conftest import TinyModel

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPTS = [[5, 6, 7], [300] * 40, list(range(20, 90))]


def test_two_ranks_answer_like_one_process(tiny_model: TinyModel) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "num_threads": 1}
    with LLM(tiny_model(), **settings) as alone:
        expected = alone.generate(PROMPTS, GREEDY)
    before = set(psutil.Process().children(recursive=True))
    with LLM(tiny_model(), tensor_parallel_size=2, executor="ray", **settings) as divided:
        found = divided.generate(PROMPTS, GREEDY)
    assert [one.outputs for one in found] == [one.outputs for one in expected]
    _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=20)
    assert left == []
