"""A worker without a model, shipped as a real class: it proves the memory and the moves.

Its cache stores token ids where a model would store keys and values, and its next token is a hash
of what it reads back through the block table. One wrong entry in a table, one block handed out too
early, one token lost in a preemption, one copy in the wrong order, and the answer is wrong. It runs
wherever a `Worker` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from octavo.scheduler.config import Capacity
from octavo.scheduler.mirror import Mirror, Row
from octavo.scheduler.plan import StepPlan, StepResult, decode_plan, encode
from octavo.workers.progress import Progress


def next_token(context: Sequence[int], vocab_size: int, seed: int | None, adapter: str = "") -> int:
    """What a null model says after `context`; `seed` None means greedily. Each adapter, which has
    a name alone here, makes it say something else. The oracle of tests."""
    raw = np.asarray(context, dtype="<u4").tobytes()
    salt = b"" if seed is None else (seed & (2**64 - 1)).to_bytes(8, "little")
    digest = blake2b(raw, digest_size=8, salt=salt, key=adapter.encode()[:64]).digest()
    return int.from_bytes(digest, "little") % vocab_size


def next_candidates(context: Sequence[int], vocab_size: int, count: int) -> list[tuple[int, float]]:
    """The (token, logprob) pairs that a null model names for a beam after `context`, likeliest
    first: `count` distinct tokens, or the whole vocabulary if that is less. The oracle of tests.

    Logprobs are distinct and below 0, and multiples of 2**-32, so that sums of them are exact in
    whatever order they are made.
    """
    digest = blake2b(np.asarray(context, dtype="<u4").tobytes(), digest_size=64).digest()
    token = int.from_bytes(digest[:8], "little") % vocab_size
    stride = int.from_bytes(digest[8:16], "little") % vocab_size
    while math.gcd(stride, vocab_size) != 1:  # a stride that visits every token once
        stride += 1
    logprob = -(1 + int.from_bytes(digest[16:20], "little")) / 2**32
    found = []
    for rank in range(min(count, vocab_size)):
        found.append((token, logprob))
        token = (token + stride) % vocab_size
        logprob -= (1 + digest[20 + rank % 44]) / 2**8
    return found


class NullWorker:
    """`step_seconds` is how long a step takes, for tests that must catch one in flight."""

    def __init__(
        self,
        block_size: int,
        *,
        vocab_size: int = 512,
        num_blocks: int = 1024,
        num_host_blocks: int = 0,
        rank: int = 0,
        step_seconds: float = 0.0,
    ) -> None:
        self.progress = Progress()
        self._vocab_size = vocab_size
        self._num_blocks = num_blocks
        self._num_host_blocks = num_host_blocks
        self._rank = rank
        self._step_seconds = step_seconds
        self._mirror = Mirror(block_size)
        self._cache = _poisoned(0, block_size)
        self._host = _poisoned(0, block_size)

    def load(self) -> None:
        """There are no weights."""

    def measure(self) -> int:
        return self._num_blocks

    def allocate(self, num_blocks: int) -> Capacity:
        block_size = self._mirror.block_size
        self._cache = _poisoned(num_blocks, block_size)
        self._host = _poisoned(self._num_host_blocks, block_size)
        return Capacity(
            num_blocks, block_size, self._num_host_blocks, block_size * self._cache.itemsize
        )

    def execute(self, raw: bytes) -> bytes | None:
        """Applies an encoded `StepPlan`; rank 0 answers an encoded `StepResult`."""
        started = time.perf_counter()
        plan = decode_plan(raw)
        self._mirror.apply(plan)
        _copy(self._cache, self._host, plan.swap_out)
        _copy(self._host, self._cache, plan.swap_in)
        copied = time.perf_counter() - started
        _copy(self._cache, self._cache, plan.copy)
        tokens, candidates = self._compute(plan)
        storing = time.perf_counter()
        _copy(self._cache, self._host, plan.store)
        copied += time.perf_counter() - storing
        self._mirror.advance(plan, tokens)
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self.progress.tick()
        self.progress.stepped(time.perf_counter() - started)
        if self._rank:
            return None
        return encode(
            StepResult(
                plan.step,
                tokens,
                compute_seconds=time.perf_counter() - started,
                candidates=candidates,
                copied_blocks=len(plan.swap_out) + len(plan.swap_in) + len(plan.store),
                copy_seconds=copied,
            )
        )

    def close(self) -> None:
        """There are no threads."""

    def _compute(self, plan: StepPlan) -> tuple[list[int], list[list[tuple[int, float]]]]:
        """All tokens are written before any is read, as a model's batch does."""
        tokens, candidates = [], []
        for work in plan.work:
            self._write(self._mirror.rows[work.row], work.start, work.start + work.count)
        for work in plan.work:
            if not work.sample:
                continue
            row = self._mirror.rows[work.row]
            context = self._read(row, work.start + work.count)
            if row.sampling.beam_width is not None:
                count = row.sampling.beam_candidates
                candidates.append(next_candidates(context, self._vocab_size, count))
            else:
                seed = None if row.sampling.greedy else row.sampling.seed
                tokens.append(next_token(context, self._vocab_size, seed, row.adapter))
        return tokens, candidates

    def _write(self, row: Row, start: int, end: int) -> None:
        block_size = self._mirror.block_size
        for position in range(start, end):
            block = row.table[position // block_size]
            self._cache[block, position % block_size] = row.tokens[position]

    def _read(self, row: Row, length: int) -> list[int]:
        context: list[int] = self._cache[row.table].reshape(-1)[:length].tolist()
        return context


def _poisoned(num_blocks: int, block_size: int) -> npt.NDArray[np.uint32]:
    """Slots that were never written must not look like token 0."""
    return np.full((num_blocks, block_size), 0xFFFFFFFF, dtype=np.uint32)


def _copy(
    source: npt.NDArray[np.uint32], target: npt.NDArray[np.uint32], pairs: list[tuple[int, int]]
) -> None:
    """Copies (source, target) blocks one after another."""
    for read, written in pairs:
        target[written] = source[read]
