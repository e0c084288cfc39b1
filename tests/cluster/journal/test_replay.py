"""What was recorded is done again, by the scheduler itself, and comes out the same."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.cluster.journal import state
from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.reader import segments
from octavo.cluster.journal.records import Planned, Record, Result, pack
from octavo.cluster.journal.replay import describe_difference, replay
from octavo.cluster.journal.writer import previous
from octavo.scheduler.plan import Grow, StepPlan, StepResult, Work
from octavo.scheduler.preemption import Preemption
from tests.cluster.journal.driving import Recorded, live_randomly, random_request

SMALL = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def recorded(path: Path, seed: int, events: int = 40, most_bytes: int = 2**30) -> Recorded:
    draw = random.Random(seed)
    engine = Recorded(
        path,
        num_host_blocks=draw.choice([0, 6, 40]),
        preemption_mode=draw.choice(["auto", "recompute", "swap"]),
        enable_prefix_caching=draw.random() < 0.8,
        most_bytes=most_bytes,
    )
    live_randomly(engine, draw, events)
    engine.close()
    return engine


@SMALL
@given(seed=st.integers(0, 2**32))
def test_any_life_is_repeated_plan_by_plan(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    previous(path).unlink(missing_ok=True)
    engine = recorded(path, seed)
    (outcome,) = replay(path)
    assert outcome.difference is None
    assert outcome.plans == len(engine.plans)
    assert outcome.same_code


@pytest.mark.parametrize("large", [state.LARGE, 4])
@SMALL
@given(seed=st.integers(0, 2**32))
def test_a_file_that_begins_amid_the_work_is_repeated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, seed: int
) -> None:
    """Also where most of the state is kept in pieces."""
    monkeypatch.setattr(state, "LARGE", large)
    monkeypatch.setattr(state, "PIECE", min(state.PIECE, large - 1))
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    previous(path).unlink(missing_ok=True)
    draw = random.Random(seed)
    engine = Recorded(path, num_host_blocks=draw.choice([0, 6, 40]), preemption_mode="auto")
    live_randomly(engine, draw, 10)
    for number in range(4):
        engine.add(*[random_request(draw, f"{number}-{each}") for each in range(3)])
        engine.step()
    before = len(engine.plans)
    engine.recorder.turn_over(engine.now)  # with requests running, waiting and in flight
    live_randomly(engine, draw, 20)
    engine.close()
    first, second = replay(path)
    assert (first.difference, second.difference) == (None, None)
    assert (first.plans, second.plans) == (before, len(engine.plans) - before)
    *_, newest = segments(path)
    assert (newest.start.pieces > 10) == (large == 4)


def test_a_state_that_was_not_wholly_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LARGE", 4)
    engine = Recorded(tmp_path / "journal")
    live_randomly(engine, random.Random(1), 10)
    engine.recorder.turn_over(engine.now)
    engine.close()
    raw = engine.recorder.path.read_bytes()
    engine.recorder.path.write_bytes(raw[:-30])
    [before, newest] = segments(engine.recorder.path)
    assert before.scheduler() is not None
    with pytest.raises(JournalError, match=r"had just been begun .* is in .*journal\.1"):
        newest.scheduler()


def test_a_large_container_with_something_else_in_it_ends_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "LARGE", 4)
    engine = Recorded(tmp_path / "journal")
    monkeypatch.setattr(state, "LOOKED_AT", 2)
    engine.scheduler.cache.pool.names[5] = engine  # type: ignore[call-overload]
    engine.recorder.turn_over(engine.now)
    engine.close()
    assert "ends here: a container of plain data has something else in it" in caplog.text


def test_a_journal_stays_small_and_can_be_replayed_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    engine = Recorded(path, most_bytes=20_000)
    draw = random.Random(1)
    sizes = []
    for _ in range(12):
        live_randomly(engine, draw, 40)
        engine.recorder.settle(engine.now, idle=True)
        engine.recorder._writer._thread.submit(lambda: None).result()
        sizes.append(path.stat().st_size)
    engine.close()
    assert max(sizes) < 40_000  # half of the bound, a state, and a chunk
    assert any(b < a for a, b in zip(sizes, sizes[1:], strict=False))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal", "journal.1"]
    outcomes = list(replay(path))
    assert [each.difference for each in outcomes] == [None, None]
    assert 0 < sum(each.plans for each in outcomes) < len(engine.plans)
    assert all(segment.start.state is not None for segment in segments(path))


def rewrite(path: Path, change: int) -> int:
    """Makes one plan of a journal another; says which step."""
    (segment,) = segments(path)
    records: list[Record] = [segment.start, *segment.records]
    plans = [at for at, each in enumerate(records) if isinstance(each, Planned) and each.plan]
    at = plans[change]
    record = records[at]
    assert isinstance(record, Planned) and record.plan is not None
    plan = msgspec.structs.replace(record.plan, grow=[*record.plan.grow, Grow(3, [9])])
    records[at] = msgspec.structs.replace(record, plan=plan)
    magic = path.read_bytes()[: path.read_bytes().index(b"\n") + 1]
    path.write_bytes(magic + pack(records))
    return plan.step


def test_a_plan_that_was_another_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    recorded(path, 5)
    step = rewrite(path, 20)
    (outcome,) = replay(path)
    assert outcome.plans == step > 0
    assert outcome.difference is not None
    assert outcome.difference.startswith(f"step {step} differs: entry ")
    assert "of `grow` was Grow(row=3, blocks=[9]), and is nothing" in outcome.difference


def test_a_policy_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    engine = recorded(path, 3)
    assert engine.scheduler.counters.preemptions > 0

    def first_in_first_out(self: Preemption, at: int) -> None:
        self._preempt(self._roster.running[0])

    monkeypatch.setattr(Preemption, "make_room", first_in_first_out)
    (outcome,) = replay(path)
    assert outcome.difference is not None and outcome.difference.startswith("step ")
    assert outcome.plans < len(engine.plans)


def test_a_failure_of_the_scheduler_can_be_had_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    engine = Recorded(path)
    live_randomly(engine, random.Random(0), 5)
    engine.recorder._notes.append(Result(engine.now, StepResult(0, [])))
    engine.close()
    (outcome,) = replay(path)
    assert outcome.difference is not None
    assert outcome.difference.startswith(f"step {len(engine.plans)}: the scheduler fails with Ind")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (None, StepPlan(1, []), "no plan was made, and now there is one"),
        (StepPlan(1, []), None, "a plan was made, and now there is none"),
        (StepPlan(1, []), StepPlan(2, []), "`step` was 1, and is 2"),
        (
            StepPlan(1, [Work(0, 5, 1, True)]),
            StepPlan(1, []),
            "entry 0 of `work` was Work(row=0, start=5, count=1, sample=True), and is nothing",
        ),
    ],
)
def test_differences_in_words(before: StepPlan | None, now: StepPlan | None, words: str) -> None:
    assert describe_difference(before, now) == words
