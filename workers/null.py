"""A worker without a model, shipped as a real class: it proves the memory and the moves.

Its cache stores token ids where a model would store keys and values, and its next token is a hash
of what it reads back through the block table. One wrong entry in a table, one block handed out too
early, one token lost in a preemption, and the answer is wrong. It runs wherever a `Worker` does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from octavo.scheduler.mirror import Mirror, Row
from octavo.scheduler.plan import StepResult, decode_plan, encode
from octavo.workers.progress import Progress


def next_token(context: Sequence[int], vocab_size: int, seed: int | None) -> int:
    """What a null model says after `context`; `seed` None means greedily. The oracle of tests."""
    raw = np.asarray(context, dtype="<u4").tobytes()
    salt = b"" if seed is None else (seed & (2**64 - 1)).to_bytes(8, "little")
    digest = blake2b(raw, digest_size=8, salt=salt).digest()
    return int.from_bytes(digest, "little") % vocab_size


class NullWorker:
    """`step_seconds` is how long a step takes, for tests that must catch one in flight."""

    def __init__(
        self,
        block_size: int,
        *,
        vocab_size: int = 512,
        num_blocks: int = 1024,
        rank: int = 0,
        step_seconds: float = 0.0,
    ) -> None:
        self.progress = Progress()
        self._vocab_size = vocab_size
        self._num_blocks = num_blocks
        self._rank = rank
        self._step_seconds = step_seconds
        self._mirror = Mirror(block_size)
        self._cache = np.zeros((0, block_size), dtype=np.uint32)

    def load(self) -> None:
        """There are no weights."""

    def measure(self) -> int:
        return self._num_blocks

    def allocate(self, num_blocks: int) -> None:
        poison = 0xFFFFFFFF  # a slot that was never written must not look like token 0
        self._cache = np.full((num_blocks, self._mirror.block_size), poison, dtype=np.uint32)

    def execute(self, raw: bytes) -> bytes | None:
        """Applies an encoded `StepPlan`; rank 0 answers an encoded `StepResult`."""
        started = time.perf_counter()
        plan = decode_plan(raw)
        self._mirror.apply(plan)
        for work in plan.work:
            self._write(self._mirror.rows[work.row], work.start, work.start + work.count)
        tokens = [
            self._sample(self._mirror.rows[work.row], work.start + work.count)
            for work in plan.work
            if work.sample
        ]
        self._mirror.advance(plan, tokens)
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self.progress.tick()
        if self._rank:
            return None
        return encode(StepResult(plan.step, tokens, compute_seconds=time.perf_counter() - started))

    def _write(self, row: Row, start: int, end: int) -> None:
        block_size = self._mirror.block_size
        for position in range(start, end):
            block = row.table[position // block_size]
            self._cache[block, position % block_size] = row.tokens[position]

    def _sample(self, row: Row, length: int) -> int:
        context = self._cache[row.table].reshape(-1)[:length].tolist()
        seed = None if row.sampling.greedy else row.sampling.seed
        return next_token(context, self._vocab_size, seed)
