"""Answers do not depend on how much memory there is, nor on what becomes of what has to give way.

The same work on a large pool and on one that holds a part of it, on the real engine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.cluster.checkpoints.embedded import prepare
from octavo.kernels.base import Kernels
from tests.conftest import TinyModel
from tests.e2e.exactness import PROMPTS as TEXTS
from tests.e2e.pressure import KINDS, Answer, Counts, assert_empty, open_llm, run
from tests.workers.late import Impatient, Late, Overwriting

PLENTY, FEW = 2000, 110
GIB = 2**30
BLOCK_BYTES = 4096  # of the tiny model, 4 tokens
HARDSHIPS: dict[str, dict[str, Any]] = {
    "recompute without a host": {"preemption_mode": "recompute", "swap_space": 0},
    "recompute": {"preemption_mode": "recompute", "swap_space": 0.02},
    "swap": {"preemption_mode": "swap", "swap_space": 0.02},
    "swap without a cache": {
        "preemption_mode": "swap",
        "swap_space": 0.02,
        "enable_prefix_caching": False,
    },
    "swap with little room": {"preemption_mode": "swap", "swap_space": 40 * BLOCK_BYTES / GIB},
    "auto": {"preemption_mode": "auto", "swap_space": 0.02},
    "auto in small steps": {"max_num_batched_tokens": 24, "swap_space": 0.02},
}
Expected = dict[str, list[Answer]]


@pytest.fixture(scope="module")
def model(tiny_model: TinyModel) -> Path:
    return tiny_model(seed=1)


@pytest.fixture(scope="module")
def expected(model: Path) -> Expected:
    """The answers of an engine that never runs out."""
    found = {}
    for name, sampling in KINDS.items():
        with open_llm(model, PLENTY, swap_space=0) as llm:
            found[name], counts = run(llm, sampling)
            assert counts.preemptions == counts.swapped_in == 0
    return found


def assert_same(found: list[Answer], wanted: list[Answer]) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other], f"prompt {number}"
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-4)


def assert_mode_was_used(name: str, counts: Counts) -> None:
    assert counts.preemptions > 0
    if name.startswith("recompute"):
        assert (counts.swaps, counts.fallbacks, counts.swapped_out) == (0, 0, 0)
    elif name == "swap with little room":
        assert counts.fallbacks > 0
        assert counts.swaps + counts.fallbacks == counts.preemptions
    elif name.startswith("swap"):
        assert counts.swaps == counts.preemptions
        assert counts.swapped_in > 0 and counts.swapped_out > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HARDSHIPS)
def test_too_few_blocks_change_no_answer(
    model: Path, expected: Expected, name: str, kind: str
) -> None:
    with open_llm(model, FEW, **HARDSHIPS[name]) as llm:
        found, counts = run(llm, KINDS[kind])
        assert_same(found, expected[kind])
        assert_mode_was_used(name, counts)
        assert (counts.copied > 0) == (kind not in ("greedy", "seeded"))
        assert_empty(llm)


@pytest.mark.parametrize("name", HARDSHIPS)
def test_nor_does_what_other_requests_left_behind(
    model: Path, expected: Expected, name: str
) -> None:
    with open_llm(model, FEW, **HARDSHIPS[name]) as llm:
        for kind, sampling in KINDS.items():
            assert_same(run(llm, sampling)[0], expected[kind])
        assert_empty(llm)


def test_auto_takes_the_cheaper_way_and_says_so(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "octavo.cluster.engine"),
        open_llm(model, FEW, **HARDSHIPS["auto"]) as llm,
    ):
        _, counts = run(llm, KINDS["four seeded samples"])
    said = [record.args for record in caplog.records if record.msg.startswith("preempted request")]
    assert len(said) == counts.preemptions
    for line in said:
        assert isinstance(line, tuple)
        _, outcome, recompute, swap = line
        assert isinstance(recompute, float) and isinstance(swap, float)
        assert recompute > 0 and swap > 0
        assert (outcome == "recompute") == (recompute <= swap)
    assert sum(line[1] == "swap" for line in said if isinstance(line, tuple)) == counts.swaps


# The model that is served when none is named


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[LLM, list[list[int]]]]:
    """On a pool that never runs out."""
    with open_llm(prepare(), PLENTY, swap_space=0) as llm:
        yield llm, [llm.tokenizer.encode(text) for text in TEXTS[:6]]


@pytest.mark.parametrize(
    ("name", "kind", "blocks"),
    [
        ("recompute without a host", "greedy", 28),
        ("swap", "four seeded samples", 80),
        ("auto", "beams", 40),
    ],
)
def test_the_embedded_model_under_pressure(
    embedded: tuple[LLM, list[list[int]]], name: str, kind: str, blocks: int
) -> None:
    at_ease, prompts = embedded
    sampling = KINDS[kind].replace(max_tokens=24)
    hardship = HARDSHIPS[name] | ({"swap_space": 0.3} if HARDSHIPS[name]["swap_space"] else {})
    wanted, _ = run(at_ease, sampling, prompts)
    with open_llm(at_ease.model_path, blocks, **hardship) as llm:
        found, counts = run(llm, sampling, prompts)
    assert_same(found, wanted)
    assert_mode_was_used(name, counts)


# Copies between the tiers that come as late as they may

OpenDelayed = Callable[[type[Late]], contextlib.AbstractContextManager[LLM]]


@pytest.fixture
def open_delayed(model: Path, monkeypatch: pytest.MonkeyPatch) -> OpenDelayed:
    @contextlib.contextmanager
    def open_one(kind: type[Late]) -> Iterator[LLM]:
        made: list[Late] = []

        def make(cache: Any, host: Any, kernels: Kernels) -> Late:
            made.append(kind(cache, host, kernels))
            return made[-1]

        monkeypatch.setattr("octavo.workers.worker.tiers_on", lambda device: make)
        with open_llm(model, FEW, preemption_mode="swap", swap_space=0.02) as llm:
            (tiers,) = made
            try:
                yield llm
            finally:
                tiers.finish()
        assert tiers.waits

    return open_one


@pytest.mark.parametrize("kind", KINDS)
def test_late_copies_change_no_answer(
    open_delayed: OpenDelayed, expected: Expected, kind: str
) -> None:
    with open_delayed(Late) as llm:
        found, counts = run(llm, KINDS[kind])
        assert counts.swaps > 0 and counts.swapped_in > 0
        assert_same(found, expected[kind])


@pytest.mark.parametrize("kind", [Overwriting, Impatient])
def test_a_missing_fence_would_be_seen(
    open_delayed: OpenDelayed, expected: Expected, kind: type[Late]
) -> None:
    with open_delayed(kind) as llm:
        found, _ = run(llm, KINDS["four seeded samples"])
    assert found != expected["four seeded samples"]


# Two ranks


def test_two_ranks_under_pressure_answer_like_one(model: Path, expected: Expected) -> None:
    settings = HARDSHIPS["swap"] | {"tensor_parallel_size": 2, "executor": "ray"}
    with open_llm(model, FEW, **settings) as llm:
        for kind in ("four seeded samples", "beams"):
            found, counts = run(llm, KINDS[kind])
            assert_same(found, expected[kind])
            assert_mode_was_used("swap", counts)
        assert_empty(llm)
