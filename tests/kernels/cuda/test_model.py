"""A worker with these kernels, interpreted, says what one with the reference's says."""

from octavo.kernels.reference import ReferenceKernels
from octavo.scheduler.plan import decode_result, encode
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker
from tests.workers.plans import BLOCK_SIZE, NUM_BLOCKS, generation_plans
from tests.workers.test_generation import random_prompts

PROMPTS = random_prompts(12, 3)
NEW_TOKENS = 2


def tokens(directory, kernels):
    worker = Worker(WorkerConfig(str(directory), block_size=BLOCK_SIZE, kernels="reference"))
    worker.kernels = kernels
    worker.load()
    worker.allocate(NUM_BLOCKS)
    plans = generation_plans(PROMPTS, NEW_TOKENS, chunk=10)
    return [decode_result(worker.execute(encode(plan))).tokens for plan in plans]


def test_the_same_tokens(tiny_model, cuda_kernels):
    found, expected = (tokens(tiny_model("qwen3"), k) for k in (cuda_kernels, ReferenceKernels()))
    assert found == expected and sum(map(len, found)) == NEW_TOKENS * len(PROMPTS)
