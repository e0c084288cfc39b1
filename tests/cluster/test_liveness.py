"""The judgement on a group, with invented times."""

from octavo.cluster.distributed.liveness import Liveness
from octavo.workers.channel import Beat


def beat(rank: int, received: int = 0, ticks: int = 0) -> Beat:
    return Beat(rank, 4000 + rank, "10.0.0.7", received, ticks)


def test_an_idle_group_that_beats_is_alive_for_ever():
    group = Liveness(2, now=0.0)
    for second in range(1, 200):
        group.beat(beat(0), second)
        group.beat(beat(1), second)
        assert group.verdict(second + 0.9) is None


def test_a_silent_rank_is_named_with_process_node_and_last_plan():
    group = Liveness(3, now=0.0)
    for second in range(1, 12):
        group.beat(beat(0, 5), second)
        group.beat(beat(2, 5), second)
        if second <= 2:
            group.beat(beat(1, 4), second)
    assert group.verdict(9.9) is None
    verdict = group.verdict(10.1)
    assert verdict is not None
    assert verdict.startswith("rank 1 (pid 4001 on 10.0.0.7, last took plan 4)")
    assert "no heartbeat for 8.1 s" in verdict


def test_a_rank_that_never_beat_is_named_by_its_number():
    group = Liveness(2, now=100.0)
    for second in range(101, 110):
        group.beat(beat(0), second)
    verdict = group.verdict(109.0)
    assert verdict is not None and verdict.startswith("rank 1 has sent no heartbeat")


def test_a_long_step_is_fine_while_some_rank_moves():
    group = Liveness(2, now=0.0)
    group.sent(0.0)
    for second in range(1, 60):
        group.beat(beat(0, 1, ticks=second), second)
        group.beat(beat(1, 1, ticks=3), second)
        assert group.verdict(second + 0.5) is None


def test_a_stuck_step_names_the_rank_that_got_least_far():
    group = Liveness(2, now=0.0)
    group.sent(20.0)
    for tenth in range(1, 100):
        now = 20 + tenth / 10
        group.beat(beat(0, 1, ticks=7), now)
        group.beat(beat(1, 1, ticks=6), now)
        expected_dead = now - 20.1 > 8.0
        verdict = group.verdict(now)
        assert (verdict is not None) == expected_dead, now
    assert verdict is not None
    assert verdict.startswith("rank 1 (pid 4001") and "stuck" in verdict


def test_a_rank_that_did_not_take_the_plan_is_behind_one_with_fewer_ticks():
    group = Liveness(2, now=0.0)
    group.sent(0.0)
    for second in range(1, 10):
        group.beat(beat(0, 1, ticks=1), second)
        group.beat(beat(1, 0, ticks=50), second)
    verdict = group.verdict(9.5)
    assert verdict is not None and verdict.startswith("rank 1 ")


def test_a_rank_that_fell_silent_is_why_the_others_are_stuck():
    group = Liveness(2, now=0.0)
    group.sent(0.0)
    group.beat(beat(1, 1, ticks=9), 0.1)
    for tenth in range(10, 100, 10):
        group.beat(beat(0, 1, ticks=3), tenth / 10)
    group.beat(beat(1, 1, ticks=9), 4.0)
    verdict = group.verdict(9.1)
    assert verdict is not None
    assert verdict.startswith("rank 1 ") and "no heartbeat for 5.1 s" in verdict, verdict


def test_last_words_of_the_culprit_are_repeated():
    group = Liveness(2, now=0.0)
    group.sent(0.0)
    group.complained(1, "expected step 4, got step 6")
    for second in range(1, 10):
        group.beat(beat(0, 1, ticks=1), second)
        group.beat(beat(1, 1, ticks=9), second)
    verdict = group.verdict(9.5)
    assert verdict is not None and verdict.startswith("rank 1 ")
    assert verdict.endswith("its last words: expected step 4, got step 6")


def test_time_between_steps_does_not_count_as_stuck():
    group = Liveness(1, now=0.0)
    group.sent(1.0)
    group.answered(2.0)
    for second in range(1, 50):
        group.beat(beat(0), second)
    group.sent(49.0)
    group.beat(beat(0), 50.0)
    assert group.verdict(50.0) is None
