"""Kernels on many threads: from several Python threads at once, and at rest."""

import threading
import time

import torch

THREADS = 5  # more than most test machines have cores, so that some come late to every job
ROUNDS = 30


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def multiply(kernels, x, packed):
    out = torch.empty(len(x), packed.outputs)
    kernels.linear(x, packed, None, out)
    return out


def test_many_jobs_one_behind_another(best_kernels):
    weights = [best_kernels.pack(random(outputs, 96, seed=outputs)) for outputs in (40, 333, 2000)]
    x = random(7, 96, seed=0)
    alone = [multiply(best_kernels, x, weight) for weight in weights]
    torch.set_num_threads(THREADS)
    for _ in range(ROUNDS):
        for weight, expected in zip(weights, alone, strict=True):
            assert torch.equal(multiply(best_kernels, x, weight), expected)


def test_callers_at_once_do_not_disturb_each_other(best_kernels):
    weight = best_kernels.pack(random(4000, 96, seed=1))
    inputs = [random(9, 96, seed=caller) for caller in range(4)]
    alone = [multiply(best_kernels, x, weight) for x in inputs]
    wrong = []

    def call(caller):
        torch.set_num_threads(THREADS)
        for _ in range(ROUNDS):
            if not torch.equal(multiply(best_kernels, inputs[caller], weight), alone[caller]):
                wrong.append(caller)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(len(inputs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_a_team_at_rest_uses_no_processor(best_kernels):
    torch.set_num_threads(THREADS)
    multiply(best_kernels, random(9, 96, seed=0), best_kernels.pack(random(4000, 96, seed=1)))
    time.sleep(0.05)  # threads look for more work for a moment
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
