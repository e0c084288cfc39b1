"""An engine in this process whose worker runs ahead gives what one gives that does not."""

from __future__ import annotations

import asyncio

import pytest

from octavo.cluster.config import EngineConfig
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.worker import Worker
from tests.workers.again import give_graphs

SAMPLING = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "n": 2},
    {"temperature": 0, "logprobs": 1},
]


class Ahead(Worker):
    """As on a GPU, with every step begun early, and decode steps played."""

    def allocate(self, num_blocks):
        capacity = super().allocate(num_blocks)
        self.runs_ahead = True
        give_graphs(self, (1, 2, 4))
        return capacity


def answers(kind, model):
    """Of more requests than the device has room for."""
    config = EngineConfig(
        str(model),
        ("tiny",),
        num_gpu_blocks_override=10,
        swap_space=0.01,
        preemption_mode="swap",
        max_num_seqs=4,
        max_num_batched_tokens=32,
        num_threads=1,
    )

    async def ask(client, number):
        prompt = [3 + number] * (5 + 7 * number)
        params = {"max_tokens": 24, "seed": number, "ignore_eos": True} | SAMPLING[number]
        request = Request(str(number), prompt, SamplingParams(**params))
        found = {}
        async for event in client.generate(request):
            found.setdefault(event.index, []).extend(event.tokens)
        return found

    async def main():
        workers = LocalWorkers(lambda: kind(config.worker_config()))
        async with LocalEngine(workers, lambda _: config.scheduler_config(512)) as client:
            found = await asyncio.gather(*(ask(client, n) for n in range(len(SAMPLING))))
            return found, client.stats()[0]

    return asyncio.run(asyncio.wait_for(main(), 120))


def test_running_ahead_changes_no_answer(tiny_model):
    ahead, stats = answers(Ahead, tiny_model())
    assert stats.measured.preemptions > 0
    assert ahead == answers(Worker, tiny_model())[0]
    assert [len(found) for found in ahead] == [1, 1, 1, 1, 2, 1]


def test_a_worker_that_fails_while_it_runs_ahead_ends_its_requests(tiny_model, monkeypatch):
    def fail(self, flight):
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(Ahead, "finish", fail)
    with pytest.raises(Exception, match="internal error|device is lost"):
        found, _ = answers(Ahead, tiny_model())
        raise AssertionError(f"it answered: {found}")
